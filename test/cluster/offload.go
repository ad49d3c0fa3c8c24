package cluster

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/test/lab"
)

// Commands of linux/ethtool.h: ETHTOOL_GTXCSUM and ETHTOOL_STXCSUM.
const (
	getTxChecksum = 0x16
	setTxChecksum = 0x17
)

// TxChecksum says whether checksums of what a device sends are left to the
// hardware, as ethtool -k does.
func TxChecksum(n *lab.NS, device string) (bool, error) {
	v := [2]uint32{getTxChecksum, 0}
	err := ethtool(n, device, &v)
	return v[1] != 0, err
}

// SetTxChecksum leaves them to the hardware, or not.
func SetTxChecksum(n *lab.NS, device string, on bool) error {
	v := [2]uint32{setTxChecksum, 0}
	if on {
		v[1] = 1
	}
	return ethtool(n, device, &v)
}

func ethtool(n *lab.NS, device string, v *[2]uint32) error {
	var request struct {
		name [unix.IFNAMSIZ]byte
		data *[2]uint32
		_    [16]byte
	}
	copy(request.name[:unix.IFNAMSIZ-1], device)
	request.data = v
	var pin runtime.Pinner
	pin.Pin(v)
	defer pin.Unpin()
	return n.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open socket: %w", err)
		}
		defer func() { _ = unix.Close(fd) }()
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
			return fmt.Errorf("ethtool of %s: %w", device, errno)
		}
		return nil
	})
}
