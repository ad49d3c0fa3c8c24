package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/test/lab"
)

// Each calls f with the numbers 0 to n-1, at most limit calls at a time. The
// first error ends the context of the others.
func Each(ctx context.Context, n, limit int, f func(ctx context.Context, i int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(limit)
	for i := range n {
		g.Go(func() error { return f(ctx, i) })
	}
	return g.Wait()
}

// Sandboxes makes so many namespaces of pods, called name0, name1 and so on.
func Sandboxes(ctx context.Context, t testing.TB, n *lab.Node, name string, count int) []*lab.Pod {
	t.Helper()
	boxes := make([]*lab.Pod, count)
	if err := Each(ctx, count, 4, func(ctx context.Context, i int) (err error) {
		boxes[i], err = n.Sandbox(ctx, fmt.Sprint(name, i), lab.PodOptions{})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return boxes
}

// Add makes an ADD of a pod's eth0 and returns the first address of its
// result; none, and no error, if the plugin failed, which is for the caller to
// judge. It may be used in any goroutine.
func Add(ctx context.Context, n *lab.Node, box *lab.Pod) (netip.Prefix, *lab.CNIAnswer, error) {
	a, err := n.CNI(ctx, CallFor("ADD", box, "eth0"))
	if err != nil || a.Exit != 0 {
		return netip.Prefix{}, a, err
	}
	var result struct {
		IPs []struct{ Address netip.Prefix }
	}
	if err := json.Unmarshal(a.Stdout, &result); err != nil || len(result.IPs) == 0 {
		return netip.Prefix{}, a, fmt.Errorf("result %q of %s: %w", a.Stdout, box.Pod, errors.Join(err, errors.New("no address")))
	}
	return result.IPs[0].Address, a, nil
}

// Delete makes a DEL of a pod's eth0. It may be used in any goroutine.
func Delete(ctx context.Context, n *lab.Node, box *lab.Pod) error {
	a, err := n.CNI(ctx, CallFor("DEL", box, "eth0"))
	if err == nil && a.Exit != 0 {
		err = fmt.Errorf("DEL of %s: %w", box.Pod, a.Err)
	}
	return err
}

// handle looks into a namespace.
func handle(path string) (*netlink.Handle, error) {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return nil, fmt.Errorf("open namespace %s: %w", path, err)
	}
	defer func() { _ = ns.Close() }()
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("look into namespace %s: %w", path, err)
	}
	return h, nil
}

// PodAddrs are the IPv4 addresses that the kernel has on a pod's interface,
// none if there is no such interface.
func PodAddrs(p *lab.Pod, ifName string) ([]netip.Prefix, error) {
	h, err := handle(p.Path())
	if err != nil {
		return nil, err
	}
	defer h.Close()
	link, err := h.LinkByName(ifName)
	var none netlink.LinkNotFoundError
	if errors.As(err, &none) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find %s of %s: %w", ifName, p.Pod, err)
	}
	found, err := h.AddrList(link, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("list addresses of %s: %w", p.Pod, err)
	}
	var all []netip.Prefix
	for _, a := range found {
		ip, _ := netip.AddrFromSlice(a.IP.To4())
		length, _ := a.Mask.Size()
		all = append(all, netip.PrefixFrom(ip, length))
	}
	return all, nil
}

// HostEnds are the node's ends of pod interfaces.
func HostEnds(n *lab.Node) ([]string, error) {
	h, err := handle(n.Path())
	if err != nil {
		return nil, err
	}
	defer h.Close()
	links, err := h.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links of %s: %w", n.Host, err)
	}
	var names []string
	for _, l := range links {
		if l.Type() == "veth" && strings.HasPrefix(l.Attrs().Name, "ten") {
			names = append(names, l.Attrs().Name)
		}
	}
	return names, nil
}

// Record is what the node's file has of one pod interface.
type Record struct {
	ContainerID string
	Addresses   []netip.Prefix
}

// Records reads the node's file, which may be done while the daemon writes it.
func Records(n *lab.Node) ([]Record, error) {
	b, err := os.ReadFile(filepath.Join(n.RunDir, "ledger.json"))
	if err != nil {
		return nil, err
	}
	var doc struct{ Allocations []Record }
	if err := json.Unmarshal(b, &doc); err != nil {
		return nil, fmt.Errorf("ledger: %w: %s", err, b)
	}
	return doc.Allocations, nil
}

// Only is nil if nothing is left on the node but these pods: as the daemon
// counts, on record, in the kernel and among the DELs that wait.
func Only(ctx context.Context, n *lab.Node, pods ...*lab.Pod) error {
	s, err := n.Status(ctx)
	if err != nil {
		return err
	}
	records, err := Records(n)
	if err != nil {
		return err
	}
	ends, err := HostEnds(n)
	if err != nil {
		return err
	}
	queued, err := os.ReadDir(filepath.Join(filepath.Dir(n.Socket), "del"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if int(s.Addresses.Used) != len(pods) || len(records) != len(pods) || len(ends) != len(pods) || len(queued) != 0 {
		return fmt.Errorf("%d pods live: %d addresses are in use, %d on record, %d interfaces, %d DELs wait: %v %v",
			len(pods), s.Addresses.Used, len(records), len(ends), len(queued), records, ends)
	}
	return nil
}
