package hook

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// FuzzLoad: what the hook remembers is the same once written and read again.
func FuzzLoad(f *testing.F) {
	for _, seed := range []string{
		`{"boot":"b","done":[{"containerID":"c1","ifName":"eth0","address":"10.5.1.2,fd00::2","subnet":"10.5.1.0/24,fd00::/64"}]}`,
		"", "{}", "null", `{"boot":"b"}`, `{"boot":"b","done":[null,{}]}`, `{"boot":"other","done":[{}]}`, `{"boot":7}`, `{"boot":"b","done":[{"containerID":"\ud800"}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(t.TempDir(), "on-stranded.json")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		done, err := load(path, "b")
		if err != nil {
			return
		}
		if err := store(path, memory{Boot: "b", Done: done}); err != nil {
			t.Fatal(err)
		}
		if again, err := load(path, "b"); err != nil || !slices.Equal(again, done) {
			t.Errorf("%q is %v, and that is %v (%v)", b, done, again, err)
		}
	})
}
