package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// deleteCgroups removes the control groups below root whose name begins with
// prefix, with those inside. root is a cgroup2 mount, or the directory of the
// mounts of version 1.
func deleteCgroups(root, prefix string) error {
	var tops []string
	for _, pattern := range []string{prefix + "*", "*/" + prefix + "*"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return fmt.Errorf("list control groups: %w", err)
		}
		tops = append(tops, found...)
	}
	if len(tops) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	// Killed processes leave their group a moment after they are gone.
	return Eventually(ctx, "control groups of the lab removed", func() error {
		var errs []error
		for _, top := range tops {
			errs = append(errs, deleteCgroup(top))
		}
		return errors.Join(errs...)
	})
}

// deleteCgroup removes one control group, the inner ones first; the files in
// them go with their directory.
func deleteCgroup(top string) error {
	var dirs []string
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // gone since it was listed
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("list control groups: %w", err)
	}
	for _, dir := range slices.Backward(dirs) {
		if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove control group: %w", &os.PathError{Op: "rmdir", Path: dir, Err: err})
		}
	}
	return nil
}
