//go:build stopat

package main

import (
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// stopAt is for a test: in the directory $TENURE_STOP_AT a file with the name
// of a place makes the daemon take the file away and stop itself (SIGSTOP) when
// it next passes the place. If the file says "kill", it kills itself (SIGKILL);
// if it says "note", the daemon only takes it away.
func stopAt() func(where string) {
	dir := os.Getenv("TENURE_STOP_AT")
	if dir == "" {
		return nil
	}
	return func(where string) {
		trigger := filepath.Join(dir, where)
		how, _ := os.ReadFile(trigger)
		if os.Remove(trigger) != nil {
			return
		}
		switch string(how) {
		case "note":
			return
		case "kill":
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {} // not one line further, however late the kernel is
		}
		// Sent to this very thread, which then does not come back from the
		// call; sent to the process it could run on for a moment.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		_ = unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP)
	}
}
