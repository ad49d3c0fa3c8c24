package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/daemon/fence"
)

// try makes what the daemon makes, in a namespace that nobody else sees and
// that ends with the thread. iptables is the program's path, "" for none.
func try(ctx context.Context, iptables string) Trials {
	done := make(chan Trials, 1)
	go func() {
		// Never unlocked: the thread ends with the goroutine, and the namespace
		// with the thread.
		runtime.LockOSThread()
		done <- tryHere(ctx, iptables)
	}()
	return <-done
}

func tryHere(ctx context.Context, iptables string) Trials {
	all := func(err error) Trials {
		why := fmt.Sprintf("make a namespace to try it in: %v", err)
		return Trials{why, why, why, why, why, why, why, why}
	}
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return all(err)
	}
	ns, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return all(err)
	}
	defer func() { _ = ns.Close() }()
	fd := int(ns.Fd())
	h, err := netlink.NewHandleAt(netns.NsHandle(fd), unix.NETLINK_ROUTE)
	if err != nil {
		return all(err)
	}
	defer h.Close()
	attrs := func(name string) netlink.LinkAttrs {
		a := netlink.NewLinkAttrs()
		a.Name = name
		return a
	}
	vxlan := &netlink.Vxlan{LinkAttrs: attrs("vxlan0"), VxlanId: 1, Port: 8472}
	t := Trials{
		Bridge: said(h.LinkAdd(&netlink.Bridge{LinkAttrs: attrs("bridge0")})),
		Veth:   said(h.LinkAdd(&netlink.Veth{LinkAttrs: attrs("veth0"), PeerName: "veth1"})),
		Vxlan:  said(h.LinkAdd(vxlan)),
	}
	t.Fence = said(tryFence(ctx, fd, vxlan.Index))
	if iptables != "" {
		t.Forward = tryRule(ctx, iptables, "-t filter -A FORWARD -m comment --comment tenure -j ACCEPT")
		t.Masquerade = tryRule(ctx, iptables, "-t nat -A POSTROUTING -j MASQUERADE")
		t.RandomFully = tryRule(ctx, iptables, "-t nat -A POSTROUTING -j MASQUERADE --random-fully")
		t.NoTrack = tryRule(ctx, iptables, "-t raw -A PREROUTING -p udp --dport 8472 -j CT --notrack")
	}
	return t
}

func said(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// tryFence makes maps and programs as the daemon does and, where there is a
// vxlan device, attaches them. Nothing of it is pinned: it goes with the
// descriptors and the device.
func tryFence(ctx context.Context, ns, ifindex int) (err error) {
	f, err := fence.Open(fence.Options{Instance: "doctor", NetNS: ns})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Release()) }()
	if ifindex == 0 {
		return nil
	}
	return f.Attach(ctx, ifindex)
}

func tryRule(ctx context.Context, iptables, rule string) string {
	out, err := exec.CommandContext(ctx, iptables, append([]string{"-w", "5"}, strings.Fields(rule)...)...).CombinedOutput()
	if err == nil {
		return ""
	}
	return fmt.Sprintf("iptables %s: %v: %s", rule, err, strings.TrimSpace(string(out)))
}
