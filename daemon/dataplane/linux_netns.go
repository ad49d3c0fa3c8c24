package dataplane

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// namespace is a network namespace to work in. /proc/sys/net and the programs
// of iptables are bound to the namespace of the thread that opens or starts
// them, unlike a netlink socket.
type namespace struct {
	// fd is 0 for the one the process lives in.
	fd int
}

// do runs f on a thread inside the namespace and waits for it. f must not
// start goroutines that need the namespace.
func (n namespace) do(f func() error) error {
	if n.fd == 0 {
		return f()
	}
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with the goroutine and takes the
		// foreign namespace with it.
		runtime.LockOSThread()
		if err := unix.Setns(n.fd, unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter network namespace: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}
