package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// NS is one namespace of the lab: a host or a pod.
type NS struct {
	lab  *Lab
	name string
}

// Execer runs a program somewhere in the lab: an NS, a Node or a Pod.
type Execer interface {
	// Exec returns what the program wrote to standard output; the error names
	// the command, its exit code and what it said.
	Exec(ctx context.Context, name string, args ...string) (string, error)
}

// Name is the namespace's name under /run/netns.
func (n *NS) Name() string { return n.name }

// Path names the namespace for other programs.
func (n *NS) Path() string { return filepath.Join(netnsDir, n.name) }

// Exec runs a program in the namespace and returns its standard output.
func (n *NS) Exec(ctx context.Context, name string, args ...string) (string, error) {
	return n.lab.run(ctx, n.name, nil, append([]string{name}, args...)...)
}

// Do runs f on a thread inside the namespace. What f opens stays there:
// sockets and netlink handles keep the namespace they were made in.
func (n *NS) Do(f func() error) error { return doIn(n.Path(), f) }

// Dial connects from inside the namespace. address must hold a literal IP.
func (n *NS) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	var conn net.Conn
	err := n.Do(func() (err error) {
		// Without a fallback address family the socket is made on this thread.
		d := net.Dialer{FallbackDelay: -1}
		conn, err = d.DialContext(ctx, network, address)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("dial from %s: %w", n.name, err)
	}
	return conn, nil
}

// Listen listens inside the namespace. address must hold a literal IP or none.
func (n *NS) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	var ln net.Listener
	err := n.Do(func() (err error) {
		var lc net.ListenConfig
		ln, err = lc.Listen(ctx, network, address)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen in %s: %w", n.name, err)
	}
	return ln, nil
}

// ip runs ip commands, one per line, inside the namespace. The first that
// fails ends the batch.
func (n *NS) ip(ctx context.Context, lines ...string) error {
	_, err := n.lab.run(ctx, n.name, strings.NewReader(strings.Join(lines, "\n")), "ip", "-batch", "-")
	return err
}

// sysctl writes values below /proc/sys/net of the namespace.
func (n *NS) sysctl(values map[string]string) error {
	return n.Do(func() error {
		for key, value := range values {
			if err := os.WriteFile(filepath.Join("/proc/sys/net", key), []byte(value), 0); err != nil {
				return fmt.Errorf("set %s in %s: %w", key, n.name, err)
			}
		}
		return nil
	})
}

// addNS makes a namespace of the lab with its loopback up.
func (l *Lab) addNS(ctx context.Context, name string) (*NS, error) {
	n := &NS{lab: l, name: nsPrefix(l.id) + name}
	if err := l.makeNS(ctx, n.name); err != nil {
		return nil, err
	}
	if err := n.ip(ctx, "link set lo up"); err != nil {
		_ = deleteNamespace(n.name)
		return nil, err
	}
	return n, nil
}

func doIn(path string, f func() error) error {
	target, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open namespace: %w", err)
	}
	defer func() { _ = target.Close() }()
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with this goroutine instead of
		// carrying the namespace back to the scheduler.
		runtime.LockOSThread()
		if err := unix.Setns(int(target.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter namespace %s: %w", path, err)
			return
		}
		done <- f()
	}()
	return <-done
}

func nsPrefix(id string) string { return "tl" + id + "-" }

// deleteNamespace takes the name away; the namespace goes with its last user.
func deleteNamespace(name string) error {
	path := filepath.Join(netnsDir, name)
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil &&
		!errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount namespace %s: %w", name, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete namespace %s: %w", name, err)
	}
	return nil
}

func deleteNamespaces(prefix string) error {
	entries, err := os.ReadDir(netnsDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list namespaces: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			errs = append(errs, deleteNamespace(e.Name()))
		}
	}
	return errors.Join(errs...)
}
