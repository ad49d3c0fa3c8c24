package cnidir

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	socket = "/run/tenure/tenured.sock"
	ours   = `{"name":"tenure","plugins":[{"type":"tenure","tenure":{"socket":"` + socket + `"}},{"type":"portmap"}]}`
)

func TestWinnerAndFormer(t *testing.T) {
	const name = "10-tenure.conflist"
	for _, c := range []struct {
		what           string
		files          map[string]string
		winner, former string
	}{
		{"alone", map[string]string{name: ours}, "", ""},
		{"a foreign one before it", map[string]string{name: ours, "05-other.conf": `{"name":"other","type":"bridge"}`}, "05-other.conf", ""},
		{"a foreign one behind it", map[string]string{name: ours, "99-other.conf": `{"name":"other","type":"bridge"}`}, "", ""},
		{"one that no runtime reads", map[string]string{name: ours, "05-other.txt": `{}`, ".10-tenure.conflist1": ours}, "", ""},
		{"one that cannot be read", map[string]string{name: ours, "00-tenure.conf": `{`}, "00-tenure.conf", ""},
		{"not there yet", map[string]string{"05-other.conf": `{"name":"other","type":"bridge"}`}, "", ""},
		{"an old extension", map[string]string{name: ours, "10-tenure.conf": ours}, "10-tenure.conf", "10-tenure.conf"},
		{"an old number", map[string]string{name: ours, "87-tenure.json": ours}, "", "87-tenure.json"},
		{"a copy with another plugin", map[string]string{name: ours, "87-tenure.conflist": strings.Replace(ours, `{"type":"portmap"}`, `{"type":"portmap"},{"type":"bandwidth"}`, 1)}, "", ""},
		{"another name", map[string]string{name: ours, "20-mine.conflist": ours}, "", ""},
		{"another instance's", map[string]string{name: ours, "20-tenure.conflist": `{"name":"b","plugins":[{"type":"tenure","tenure":{"socket":"/run/b.sock"}}]}`}, "", ""},
		{"one with another plugin ahead", map[string]string{name: ours, "20-tenure.conflist": `{"name":"tenure","plugins":[{"type":"mine"},{"type":"tenure","tenure":{"socket":"` + socket + `"}}]}`}, "", ""},
		{"another plugin's of that name", map[string]string{name: ours, "20-tenure.conf": `{"name":"tenure","type":"bridge"}`}, "", ""},
	} {
		t.Run(c.what, func(t *testing.T) {
			dir := t.TempDir()
			for name, content := range c.files {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			files, err := Read(dir)
			if err != nil {
				t.Fatal(err)
			}
			if w, _ := Winner(files, name); w.Name != c.winner {
				t.Errorf("winner %q, want %q", w.Name, c.winner)
			}
			var former string
			for _, f := range Former(files, name, socket) {
				former += f.Name
			}
			if former != c.former {
				t.Errorf("former %q, want %q", former, c.former)
			}
		})
	}
	if files, err := Read(filepath.Join(t.TempDir(), "none")); err != nil || len(files) != 0 {
		t.Errorf("no directory: %v, %v", files, err)
	}
}

// TestOurs: it is ours wherever in the chain our plugin stands, and the socket
// is the one that this plugin calls.
func TestOurs(t *testing.T) {
	for text, want := range map[string]string{
		ours: socket,
		`{"plugins":[{"type":"mine"},{"type":"tenure","tenure":{"socket":"/b"}}]}`:                                                             "/b",
		`{"plugins":[{"type":"mine","ipam":{"type":"host-local"}},{"type":"macvlan","ipam":{"type":"tenure-ipam","tenure":{"socket":"/c"}}}]}`: "/c",
		`{"type":"bridge","ipam":{"type":"tenure-ipam"}}`:                                                                                      "",
		`{"plugins":[{"type":"bridge","ipam":{"type":"host-local"}},{"type":"portmap"}]}`:                                                      "not ours",
		`{"plugins":[{"type":"tenure2"}]}`:                                                                                                     "not ours",
	} {
		path := filepath.Join(t.TempDir(), "10-x.conflist")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		f, got := readFile(path), "not ours"
		if f.Ours() {
			got = f.Socket
		}
		if got != want || f.Err != "" {
			t.Errorf("%s: socket %q, %s, want %q", text, got, f.Err, want)
		}
	}
}
