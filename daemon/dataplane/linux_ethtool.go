package dataplane

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ethtoolGetTx and ethtoolSetTx are the commands of linux/ethtool.h for all
// kinds of checksums of what a device sends.
const (
	ethtoolGetTx = 0x16 // ETHTOOL_GTXCSUM
	ethtoolSetTx = 0x17 // ETHTOOL_STXCSUM
)

// ethtoolValue is struct ethtool_value.
type ethtoolValue struct{ cmd, data uint32 }

// ethtoolRequest is struct ifreq with a pointer as its argument.
type ethtoolRequest struct {
	name [unix.IFNAMSIZ]byte
	data *ethtoolValue
	_    [24 - unsafe.Sizeof(uintptr(0))]byte // what the kernel's union may take
}

// readTxChecksum asks each of our vxlan devices. The kernel tells of a change as
// of any other of a link (NETDEV_FEAT_CHANGE), so that the loop wakes up.
func (k *Linux) readTxChecksum(s *State) {
	s.TxChecksum = map[string]bool{}
	var names []string
	for name, l := range s.Links {
		if l.Kind == KindVxlan && ourVxlan(k.opts.Name, name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return
	}
	err := k.ethtool(func(ask func(name string, v *ethtoolValue) error) error {
		var errs []error
		for _, name := range names {
			v := ethtoolValue{cmd: ethtoolGetTx}
			err := ask(name, &v)
			if err == nil {
				s.TxChecksum[name] = v.data != 0
			} else if !errors.Is(err, unix.ENODEV) { // it has gone meanwhile
				errs = append(errs, fmt.Errorf("%s: %w", name, err))
			}
		}
		return errors.Join(errs...)
	})
	if err != nil {
		s.Faults = append(s.Faults, Fault{"tx-checksum", fmt.Sprintf("read whether checksums are left to the hardware: %v", err)})
	}
}

// setTxChecksum turns it on or off. Segmentation in hardware (TSO) needs it, and
// goes and comes with it.
func (k *Linux) setTxChecksum(c SetTxChecksum) error {
	v := ethtoolValue{cmd: ethtoolSetTx}
	if c.On {
		v.data = 1
	}
	return k.ethtool(func(ask func(string, *ethtoolValue) error) error { return ask(c.Link, &v) })
}

// ethtool gives f a way to ask about devices of the namespace: that of the
// socket.
func (k *Linux) ethtool(f func(ask func(name string, v *ethtoolValue) error) error) error {
	return k.ns.do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if errors.Is(err, unix.EAFNOSUPPORT) { // a kernel without IPv4
			fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		}
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		defer func() { _ = unix.Close(fd) }()
		return f(func(name string, v *ethtoolValue) error { return askEthtool(fd, name, v) })
	})
}

func askEthtool(fd int, name string, v *ethtoolValue) error {
	r := ethtoolRequest{data: v}
	if len(name) >= len(r.name) {
		return unix.ENODEV
	}
	copy(r.name[:], name)
	// The kernel reads and writes v through r; both must stay where they are.
	var pin runtime.Pinner
	pin.Pin(v)
	defer pin.Unpin()
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&r)))
	if errno != 0 {
		return errno
	}
	return nil
}
