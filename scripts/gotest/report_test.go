package main

import (
	"strings"
	"testing"
)

func TestReport(t *testing.T) {
	const okLine = `{"Action":"output","Package":"p","Output":"ok  \tp\t0.1s\n"}` + "\n" + `{"Action":"pass","Package":"p"}` + "\n"
	const pass = `{"Action":"run","Package":"p","Test":"A"}` + "\n" +
		`{"Action":"output","Package":"p","Test":"A","Output":"chatter\n"}` + "\n" +
		`{"Action":"pass","Package":"p","Test":"A"}` + "\n"
	for name, tc := range map[string]struct {
		in   string
		good bool
		want string
	}{
		"pass": {pass + okLine, true, "ok  \tp\t0.1s\n1 passed, 0 failed, 0 skipped\n"},
		"fail": {
			`{"Action":"output","Package":"p","Test":"A","Output":"boom\n"}
{"Action":"fail","Package":"p","Test":"A"}
{"Action":"output","Package":"p","Output":"FAIL\tp\t0.1s\n"}
{"Action":"fail","Package":"p"}
`, false, "boom\nFAIL\tp\t0.1s\n0 passed, 1 failed, 0 skipped\n",
		},
		"skip": {
			pass + `{"Action":"output","Package":"p","Test":"B","Output":"no root\n"}
{"Action":"skip","Package":"p","Test":"B"}
` + okLine, false,
			"no root\nok  \tp\t0.1s\nFAIL: tests were skipped, which counts as a failure\n1 passed, 0 failed, 1 skipped\n",
		},
		"package without tests": {
			pass + okLine + `{"Action":"output","Package":"q","Output":"?   \tq\t[no test files]\n"}
{"Action":"skip","Package":"q"}
`, true, "ok  \tp\t0.1s\n?   \tq\t[no test files]\n1 passed, 0 failed, 0 skipped\n",
		},
		"build failure": {
			pass + okLine + `{"ImportPath":"q","Action":"build-output","Output":"q.go:1:1: undefined: x\n"}
{"ImportPath":"q","Action":"build-fail"}
{"Action":"output","Package":"q","Output":"FAIL\tq [build failed]\n"}
{"Action":"fail","Package":"q","FailedBuild":"q"}
`, false,
			"ok  \tp\t0.1s\nq.go:1:1: undefined: x\nFAIL\tq [build failed]\n1 packages failed outside of any test\n1 passed, 1 failed, 0 skipped\n",
		},
		"cut off": {
			`{"Action":"output","Package":"p","Test":"A","Output":"=== RUN A\n"}
{"Action":"output","Package":"p","Output":"signal: killed\n"}
{"Action":"output","Package":"p","Output":"FAIL\tp\t0.1s\n"}
{"Action":"fail","Package":"p"}
`, false,
			"FAIL\tp\t0.1s\nsignal: killed\n=== RUN A\n0 passed, 1 failed, 0 skipped\n",
		},
		"no test at all":  {`{"Action":"skip","Package":"q"}` + "\n", false, "0 passed, 0 failed, 0 skipped\n"},
		"no event at all": {"go: no such package\n", false, "go: no such package\n0 passed, 0 failed, 0 skipped\n"},
	} {
		var got strings.Builder
		r := newReport(&got)
		if err := r.read(strings.NewReader(tc.in)); err != nil {
			t.Fatal(err)
		}
		r.close()
		if got.String() != tc.want || r.good() != tc.good {
			t.Errorf("%s: good %v, printed\n%s\nwant %v\n%s", name, r.good(), got.String(), tc.good, tc.want)
		}
	}
}
