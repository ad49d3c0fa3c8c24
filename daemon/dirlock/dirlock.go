package dirlock

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// Hold makes the directories and makes sure that nobody else holds one of them.
// The locks end with the process at the latest.
func Hold(dirs ...string) (unlock func(), err error) {
	var files []*os.File
	unlock = func() {
		for _, f := range files {
			_ = f.Close()
		}
	}
	slices.Sort(dirs)
	for _, dir := range slices.Compact(dirs) {
		f, err := lockDir(dir)
		if err != nil {
			unlock()
			return nil, err
		}
		files = append(files, f)
	}
	return unlock, nil
}

func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make directory: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("another tenured uses %s (%w); a second instance needs --name, --run-dir and --state-dir of its own", dir, err)
	}
	return f, nil
}
