// Package netnstest gives tests network namespaces of their own.
//
// The namespaces are anonymous: nothing but a file descriptor of this process
// keeps them, so they are gone when the test process is, however it ended.
package netnstest

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// NS is one network namespace with its loopback down, as the kernel makes it.
type NS struct {
	file *os.File
}

// New makes a namespace that is closed when the test ends. It needs root.
func New(t testing.TB) *NS {
	t.Helper()
	type made struct {
		file *os.File
		err  error
	}
	done := make(chan made, 1)
	go func() {
		// The thread is never unlocked: it dies with this goroutine instead of
		// carrying a foreign namespace back to the scheduler.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- made{err: fmt.Errorf("unshare network namespace (are you root?): %w", err)}
			return
		}
		f, err := os.Open(threadNS())
		done <- made{f, err}
	}()
	m := <-done
	if m.err != nil {
		t.Fatalf("new network namespace: %v", m.err)
	}
	ns := &NS{file: m.file}
	t.Cleanup(func() { _ = m.file.Close() })
	return ns
}

// FD is the namespace's file descriptor, for netlink.NewHandleAt and the like.
func (n *NS) FD() int { return int(n.file.Fd()) }

// Path names the namespace for other processes while this one lives.
func (n *NS) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.file.Fd()) }

// Do runs f on a thread inside the namespace. Processes that f starts are
// inside it too. f must not start goroutines that need the namespace.
func (n *NS) Do(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := unix.Setns(n.FD(), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter network namespace: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

func threadNS() string {
	return fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid())
}
