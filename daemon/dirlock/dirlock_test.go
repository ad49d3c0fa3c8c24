package dirlock

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestHold(t *testing.T) {
	base := t.TempDir()
	run, state := filepath.Join(base, "run"), filepath.Join(base, "var", "state")
	unlock, err := Hold(run, state)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(base, "other")
	for _, dirs := range [][]string{{run, other}, {other, state}} {
		if _, err := Hold(dirs...); !errors.Is(err, unix.EWOULDBLOCK) || !strings.Contains(err.Error(), "--state-dir") {
			t.Errorf("a second daemon in %v: %v, want to be told what it needs", dirs, err)
		}
	}
	// A lock that was had before the failure is not kept.
	free, err := Hold(other)
	if err != nil {
		t.Fatalf("the failed attempt keeps %s: %v", other, err)
	}
	free()
	unlock()
	again, err := Hold(run, state)
	if err != nil {
		t.Fatalf("after the first daemon ended: %v", err)
	}
	again()
	if _, err := Hold(filepath.Join("/dev/null", "x")); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("a directory below a file: %v", err)
	}
	if _, err := os.Stat(filepath.Join(run, "lock")); errors.Is(err, fs.ErrNotExist) {
		t.Error("the lock's file is gone: two daemons could lock two files of that name")
	}
}
