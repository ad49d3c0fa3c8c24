package main

import (
	"path/filepath"
	"testing"
)

// TestAbsolute: tenurectl opens the files from another working directory.
func TestAbsolute(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for file, want := range map[string]string{"": "", "ca.pem": filepath.Join(dir, "ca.pem"), "/etc/tenure/ca.pem": "/etc/tenure/ca.pem"} {
		if got := absolute(file); got != want {
			t.Errorf("absolute(%q) = %q, want %q", file, got, want)
		}
	}
}
