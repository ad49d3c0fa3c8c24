package install

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestTwoAtOnce: what one writes, another does not take from under it.
func TestTwoAtOnce(t *testing.T) {
	dir := t.TempDir()
	unlock, err := lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := Put(dir, File{Path: "/file", Mode: 0o644, Content: []byte("new")})
		done <- err
	}()
	select {
	case err := <-done:
		t.Fatalf("a second installer did not wait: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	unlock()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestPut(t *testing.T) {
	root := t.TempDir()
	put := func(want string, f File) {
		t.Helper()
		if done, err := Put(root, f); err != nil || done != want {
			t.Errorf("%q, %v, want %q", done, err, want)
		}
	}
	file := File{Path: "/etc/a", Mode: 0o644, Content: []byte("one")}
	put(Written, file)
	put(Unchanged, file)
	file.Mode = 0o600
	put(Written, file)
	file.Content = []byte("two")
	put(Written, file)
	file.Keep, file.Content = true, []byte("three")
	put(Kept, file)
	// A link is replaced, not followed.
	victim := filepath.Join(root, "victim")
	link := filepath.Join(root, "etc", "b")
	if err := os.WriteFile(victim, []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{link, interim(link)} {
		if err := os.Symlink(victim, name); err != nil {
			t.Fatal(err)
		}
	}
	put(Written, File{Path: "/etc/b", Mode: 0o644, Content: []byte("ours")})
	if b, err := os.ReadFile(victim); err != nil || string(b) != "mine" {
		t.Errorf("what a link led to is %q now, %v", b, err)
	}
	entries, err := os.ReadDir(filepath.Join(root, "etc"))
	if err != nil || len(entries) != 2 {
		t.Errorf("%v, %v", entries, err)
	}
}

func TestLayout(t *testing.T) {
	all := Layout{Prefix: "/usr", CNIBin: "/opt/cni/bin", UnitDir: "/lib/systemd/system", Config: "/etc/t.yaml"}.All("from")
	var paths []string
	for _, f := range all {
		paths = append(paths, f.Path)
	}
	const want = "/opt/cni/bin/tenure /opt/cni/bin/tenure-ipam /usr/bin/tenurectl /usr/sbin/tenured /etc/t.yaml /lib/systemd/system/tenured.service"
	if got := strings.Join(paths, " "); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if unit := string(all[5].Content); !strings.Contains(unit, "ExecStart=/usr/sbin/tenured --config /etc/t.yaml\n") || strings.Contains(unit, "/usr/local/") {
		t.Errorf("the unit starts something else:\n%s", unit)
	}
}
