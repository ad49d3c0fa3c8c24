package dataplane

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// watchBuffer is the receive buffer of the notices' socket in bytes.
const watchBuffer = 1 << 20

// Watch implements Kernel. The content of a notice does not matter, only that
// there was one: the state is always read anew. So a socket that overflows
// loses nothing; it is made anew, and what it missed is one more notice.
func (k *Linux) Watch(ctx context.Context) (<-chan struct{}, error) {
	socket, err := k.subscribe()
	if err != nil {
		return nil, err
	}
	return k.watch(ctx, socket), nil
}

func (k *Linux) watch(ctx context.Context, socket *nl.NetlinkSocket) <-chan struct{} {
	out := make(chan struct{}, 1)
	go func() {
		defer close(out)
		for {
			forwardNotices(ctx, socket, out)
			if socket = k.resubscribe(ctx); socket == nil {
				return
			}
			poke(out)
		}
	}()
	return out
}

func (k *Linux) subscribe() (*nl.NetlinkSocket, error) {
	ns := netns.None()
	if k.opts.NetNS != 0 {
		ns = netns.NsHandle(k.opts.NetNS)
	}
	socket, err := nl.SubscribeAt(ns, netns.None(), unix.NETLINK_ROUTE,
		unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_TC, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE,
		unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV6_ROUTE,
		unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF) // the last tell of forwarding switches
	if err != nil {
		return nil, fmt.Errorf("subscribe to netlink notices: %w", err)
	}
	// Best effort: a smaller buffer only means more full reads.
	_ = socket.SetReceiveBufferSize(watchBuffer, true)
	return socket, nil
}

// resubscribe tries once a second; it returns nil when ctx is done.
func (k *Linux) resubscribe(ctx context.Context) *nl.NetlinkSocket {
	for ctx.Err() == nil {
		if socket, err := k.subscribe(); err == nil {
			return socket
		}
		sleep(ctx, time.Second)
	}
	return nil
}

// forwardNotices returns when ctx is done or the socket fails, and closes it.
func forwardNotices(ctx context.Context, socket *nl.NetlinkSocket, out chan<- struct{}) {
	stop := context.AfterFunc(ctx, socket.Close)
	defer func() {
		if stop() {
			socket.Close()
		}
	}()
	for {
		msgs, _, err := socket.Receive()
		if err != nil {
			return
		}
		for _, m := range msgs {
			if matters(m) {
				poke(out)
				break
			}
		}
	}
}

// matters leaves out what changes by itself all the time on a busy node: a
// neighbour that was resolved or is being verified, where ours are permanent;
// and what IPv6 does on each link that comes up or goes, as every pod's does.
func matters(m syscall.NetlinkMessage) bool {
	const stateOffset = 8 // of ndm_state in struct ndmsg
	switch m.Header.Type {
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		return !linkLocal(m.Data, unix.SizeofIfAddrmsg, unix.IFA_ADDRESS)
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return !linkLocal(m.Data, unix.SizeofRtMsg, unix.RTA_DST)
	}
	if m.Header.Type != unix.RTM_NEWNEIGH || len(m.Data) < stateOffset+2 {
		return true
	}
	state := binary.NativeEndian.Uint16(m.Data[stateOffset:])
	return state&(netlink.NUD_PERMANENT|netlink.NUD_NOARP|netlink.NUD_FAILED) != 0
}

// linkLocal says that a message is about an IPv6 address that is one on a link
// only, or for many.
func linkLocal(m []byte, header int, attr uint16) bool {
	if len(m) < header || m[0] != unix.AF_INET6 {
		return false
	}
	a, ok := netip.AddrFromSlice(attrIn(m[header:], attr))
	return ok && (a.IsLinkLocalUnicast() || a.IsMulticast())
}

func poke(out chan<- struct{}) {
	select {
	case out <- struct{}{}:
	default:
	}
}
