package attach

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/tenure-cni/tenure/test/netnstest"
)

// TestBorne finds the addresses of interfaces that another plugin made, as long
// as they are there and no longer.
func TestBorne(t *testing.T) {
	b := newBench(t)
	other, otherLinks := newPod(t)
	subnet := netip.MustParsePrefix("10.5.34.0/24")
	pair := func(host, inPod string, at *netnstest.NS, h *netlink.Handle, addrs ...string) {
		t.Helper()
		veth := netlink.NewVeth(named(host))
		veth.PeerName, veth.PeerNamespace = inPod, netlink.NsFd(at.FD())
		must(t, b.host.LinkAdd(veth))
		for _, a := range addrs {
			must(t, h.AddrAdd(byName(t, h, inPod), &netlink.Addr{IPNet: ipNet(netip.MustParsePrefix(a))}))
		}
	}
	borne := func(what string, want ...string) {
		t.Helper()
		got, err := b.attacher.Borne(t.Context(), []netip.Prefix{subnet, netip.MustParsePrefix("10.5.0.0/16"), netip.MustParsePrefix("fd00::/64")})
		var texts []string
		for _, p := range got {
			texts = append(texts, p.String())
		}
		if err != nil || !slices.Equal(texts, want) {
			t.Errorf("%s: %v, %v; want %v", what, texts, err, want)
		}
	}
	borne("no pods")
	pair("veth1", "eth0", b.podNS, b.pod, "10.5.34.7/24", "10.5.35.7/24")
	pair("veth2", "eth0", other, otherLinks, "10.5.34.2/32", "fd00::2/64")
	pair("veth3", "eth1", other, otherLinks, "10.5.34.9/24")
	must(t, b.host.AddrAdd(byName(t, b.host, "tenure0"), &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(netip.MustParseAddr("10.5.34.1"), 24))}))
	borne("two pods", "10.5.34.2/24", "10.5.34.7/24", "10.5.34.9/24", "10.5.35.7/16", "fd00::2/64")
	must(t, b.host.LinkDel(byName(t, b.host, "veth1")))
	borne("one interface less", "10.5.34.2/24", "10.5.34.9/24", "fd00::2/64")

	served, err := b.attacher.Served(t.Context(), "tenure0")
	if err != nil || !slices.Equal(served, []netip.Prefix{subnet}) {
		t.Errorf("the bridge's subnets are %v, %v; want %s", served, err, subnet)
	}
	if served, err = b.attacher.Served(t.Context(), "absent0"); err != nil || len(served) > 0 {
		t.Errorf("the subnets of no bridge are %v, %v", served, err)
	}
}
