package attach

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Gone reports whether a pod interface is certainly no more: no link bears the
// name of its host end, and no namespace of a pod is at netnsPath, which may be
// empty where nobody knows it. A namespace takes its end of a veth with it when
// it dies, and that end the other one; so a link that is there tells of one
// that lives, whatever became of the path. Without a hostName, where the
// interface is another plugin's, the path alone counts. An error means that it
// cannot be told.
func (a *Attacher) Gone(ctx context.Context, hostName, netnsPath string) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, fmt.Errorf("look for veth %s: %w", hostName, err)
	}
	if hostName != "" {
		if there, err := a.Exists(ctx, hostName); err != nil || there {
			return false, err
		}
	}
	return podNSGone(netnsPath, a.host)
}

// podNSGone says that a path leads to no pod's namespace any more. It is asked
// beside the link: somebody may have deleted the pair of a pod that lives, and
// its runtime may ask for it again.
func podNSGone(path string, host netns.NsHandle) (bool, error) {
	if path == "" {
		return true, nil
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ESRCH) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for the pod's namespace: %w", err)
	}
	defer func() { _ = f.Close() }()
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return false, fmt.Errorf("look for the pod's namespace: statfs %s: %w", path, err)
	}
	if st.Type != unix.NSFS_MAGIC {
		return true, nil // the empty file that a namespace was mounted on
	}
	// A path by process ID may lead to the host's own once the ID is used again.
	return isHostNS(f, host)
}
