package flows

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// headerLen is the length of a conntrack message's own header.
const headerLen = 4

// answerTimeout bounds the wait for the kernel's next answer.
const answerTimeout = 2 * time.Second

// set is addresses whose connections are to be forgotten.
type set map[netip.Addr]bool

// families are those of the addresses.
func (s set) families() (all []uint8) {
	for addr := range s {
		f := uint8(unix.AF_INET6)
		if addr.Is4() {
			f = unix.AF_INET
		}
		if !slices.Contains(all, f) {
			all = append(all, f)
		}
	}
	return all
}

// forget deletes the entries of the addresses in the namespace, and counts
// them. The table is read once a family, however many addresses there are:
// to have the kernel pick takes it two walks for each address.
func forget(host netns.NsHandle, s set) (int, error) {
	socket, err := nl.GetNetlinkSocketAt(host, netns.None(), unix.NETLINK_NETFILTER)
	if err != nil {
		return 0, fmt.Errorf("open netlink socket: %w", err)
	}
	defer socket.Close()
	limit := unix.NsecToTimeval(answerTimeout.Nanoseconds())
	if err := errors.Join(socket.SetReceiveTimeout(&limit), socket.SetSendTimeout(&limit)); err != nil {
		return 0, err
	}
	c := conntrack{unix.NETLINK_NETFILTER: &nl.SocketHandle{Socket: socket}}
	forgotten := 0
	for _, family := range s.families() {
		n, err := c.forget(family, s)
		if forgotten += n; err != nil {
			return forgotten, err
		}
	}
	return forgotten, nil
}

// conntrack is a socket to the kernel's connection tracking.
type conntrack map[int]*nl.SocketHandle

func (c conntrack) forget(family uint8, s set) (int, error) {
	var theirs [][]byte
	// A dump that was interrupted may lack entries, and shows the others.
	err := c.request(family, nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP).ExecuteIter(unix.NETLINK_NETFILTER, 0, func(entry []byte) bool {
		if len(entry) > headerLen && isOf(entry[headerLen:], s) {
			theirs = append(theirs, slices.Clone(entry[headerLen:]))
		}
		return true
	})
	if err != nil && !errors.Is(err, nl.ErrDumpInterrupted) {
		return 0, fmt.Errorf("list connections: %w", err)
	}
	n := 0
	for _, entry := range theirs {
		// An entry says all that names it, its number included: one that was
		// made anew since is another.
		r := c.request(family, nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK)
		r.AddData(attrs(entry))
		if _, err := r.Execute(unix.NETLINK_NETFILTER, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return n, fmt.Errorf("delete connection: %w", err)
		}
		n++
	}
	return n, nil
}

func (c conntrack) request(family uint8, what, flags int) *nl.NetlinkRequest {
	r := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|what, flags)
	r.Sockets = c
	r.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	return r
}

// isOf says whether an entry is of one of the addresses: it is the source of
// the original direction where the pod began the connection, and that of the
// replies where another did, whatever address that one had called.
func isOf(entry attrs, s set) bool {
	for _, direction := range []int{nl.CTA_TUPLE_ORIG, nl.CTA_TUPLE_REPLY} {
		ip := entry.get(direction).get(nl.CTA_TUPLE_IP)
		for _, source := range []int{nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC} {
			if addr, ok := netip.AddrFromSlice(ip.get(source)); ok && s[addr] {
				return true
			}
		}
	}
	return false
}

// attrs are netlink attributes as the kernel sends them.
type attrs []byte

// Len implements nl.NetlinkRequestData.
func (a attrs) Len() int { return len(a) }

// Serialize implements nl.NetlinkRequestData.
func (a attrs) Serialize() []byte { return a }

// get is the content of one of them; nil if it is not there.
func (a attrs) get(kind int) attrs {
	for len(a) >= unix.SizeofNlAttr {
		length, k := int(binary.NativeEndian.Uint16(a)), int(binary.NativeEndian.Uint16(a[2:])&nl.NLA_TYPE_MASK)
		if length < unix.SizeofNlAttr || length > len(a) {
			return nil
		}
		if k == kind {
			return a[unix.SizeofNlAttr:length]
		}
		a = a[min(len(a), (length+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1)):]
	}
	return nil
}
