package cnidir

import (
	"os"
	"path/filepath"
	"testing"
)

// FuzzRead: a file of anybody's in the runtime's directory is read or has a reason.
func FuzzRead(f *testing.F) {
	for _, seed := range []string{
		ours, "", "{}", "null", "[]", `{"type":"bridge","ipam":{"type":"tenure-ipam","tenure":{"socket":"/s"}}}`, `{"plugins":[]}`, `{"plugins":[null]}`, `{"plugins":{}}`,
		`{"name":"n","plugins":[{"type":"flannel"},{"type":"tenure"},{"type":"tenure-ipam"}]}`, `{"name":7}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "10-tenure.conflist"), b, 0o600); err != nil {
			t.Fatal(err)
		}
		files, err := Read(dir)
		if err != nil || len(files) != 1 {
			t.Fatalf("%v, %v", files, err)
		}
		one := files[0]
		if (one.Err == "") != (len(one.Types) > 0) || len(one.Err) > 500 {
			t.Errorf("%q is %+v", b, one)
		}
		Winner(files, one.Name)
		Former(files, "20-tenure.conflist", one.Socket)
	})
}
