package attach

import (
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// openPodNS opens the pod's network namespace, which stays alive while the
// file is open. All its failures are ErrNamespace.
func openPodNS(path string, host netns.NsHandle) (*os.File, error) {
	if path == "" {
		return nil, fmt.Errorf("%w: no path is given", ErrNamespace)
	}
	// Without O_NONBLOCK a named pipe in place of a namespace would hang us.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNamespace, err)
	}
	if err := judgePodNS(f, host); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("%w: %s: %w", ErrNamespace, path, err)
	}
	return f, nil
}

func judgePodNS(f *os.File, host netns.NsHandle) error {
	fd := int(f.Fd())
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return fmt.Errorf("statfs: %w", err)
	}
	if fs.Type != unix.NSFS_MAGIC {
		return errors.New("it is not a namespace")
	}
	// The request's answer is its return value, which IoctlRetInt gives.
	if kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE); err != nil || kind != unix.CLONE_NEWNET {
		return errors.New("it is not a network namespace")
	}
	own, err := isHostNS(f, host)
	if err != nil {
		return err
	}
	if own {
		return errors.New("it is the host's own")
	}
	return nil
}

// isHostNS says whether a namespace is the one that host ends are made in.
func isHostNS(f *os.File, host netns.NsHandle) (bool, error) {
	pod, err := identify(func(st *unix.Stat_t) error { return unix.Fstat(int(f.Fd()), st) })
	if err != nil {
		return false, err
	}
	own, err := identify(func(st *unix.Stat_t) error {
		if host.IsOpen() {
			return unix.Fstat(int(host), st)
		}
		// Not /proc/self, which is the main thread's.
		return unix.Stat("/proc/thread-self/ns/net", st)
	})
	return pod == own, err
}

// nsID is what tells namespaces apart.
type nsID struct{ dev, inode uint64 }

func identify(stat func(*unix.Stat_t) error) (nsID, error) {
	var st unix.Stat_t
	if err := stat(&st); err != nil {
		return nsID{}, fmt.Errorf("identify network namespace: %w", err)
	}
	return nsID{st.Dev, st.Ino}, nil
}
