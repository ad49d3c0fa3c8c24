package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/node"
	"github.com/tenure-cni/tenure/test/netnstest"
)

// machine is a network namespace of the test's own.
type machine struct {
	t  *testing.T
	ns *netnstest.NS
	h  *netlink.Handle
}

// detected is what a look finds.
func detected(ctx context.Context, u *underlay) (node.Underlay, error) {
	now, err := u.read()
	if err != nil {
		return node.Underlay{}, err
	}
	return u.choice(ctx, now).choose()
}

func newMachine(t *testing.T) machine {
	t.Helper()
	if testing.Short() {
		t.Skip("needs root and network namespaces")
	}
	ns := netnstest.New(t)
	h, err := netlink.NewHandleAt(netns.NsHandle(ns.FD()), unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return machine{t, ns, h}
}

// link makes an interface that is up, with the given addresses in order. A
// word behind an address says what is special about it.
func (m machine) link(name string, addrs ...string) netlink.Link {
	m.t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = name, 1500
	peer := fmt.Sprintf("peer-%s", name)
	if err := m.h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: peer}); err != nil {
		m.t.Fatalf("add %s: %v", name, err)
	}
	m.up(peer)
	l := m.up(name)
	for _, text := range addrs {
		text, special, _ := strings.Cut(text, " ")
		a, err := netlink.ParseAddr(text)
		if err != nil {
			m.t.Fatal(err)
		}
		switch special {
		case "deprecated":
			a.ValidLft, a.PreferedLft = 3600, 0
		case "link":
			a.Scope = unix.RT_SCOPE_LINK
		}
		if a.IP.To4() == nil && special != "tentative" {
			a.Flags |= unix.IFA_F_NODAD
		}
		if err := m.h.AddrAdd(l, a); err != nil {
			m.t.Fatalf("add %s to %s: %v", text, name, err)
		}
	}
	return l
}

func (m machine) up(name string) netlink.Link {
	m.t.Helper()
	l, err := m.h.LinkByName(name)
	if err == nil {
		err = m.h.LinkSetUp(l)
	}
	if err != nil {
		m.t.Fatalf("set %s up: %v", name, err)
	}
	return l
}

func (m machine) down(l netlink.Link) {
	m.t.Helper()
	if err := m.h.LinkSetDown(l); err != nil {
		m.t.Fatal(err)
	}
}

// route goes to dst, "" for the default, through gw.
func (m machine) route(dst, gw string) {
	m.t.Helper()
	r := &netlink.Route{Gw: net.ParseIP(gw)}
	if dst != "" {
		_, n, err := net.ParseCIDR(dst)
		if err != nil {
			m.t.Fatal(err)
		}
		r.Dst = n
	}
	if err := m.h.RouteAdd(r); err != nil {
		m.t.Fatalf("add route to %q by %s: %v", dst, gw, err)
	}
}

// underlay looks with the settings given.
func (m machine) underlay(cfg conf.Daemon) *underlay {
	cfg.Name = "tenure"
	if len(cfg.Etcd.Endpoints) == 0 {
		cfg.Etcd.Endpoints = []string{"http://127.0.0.1:2379"}
	}
	return &underlay{cfg: cfg, log: slog.New(slog.DiscardHandler), handle: m.h, resolve: net.DefaultResolver.LookupNetIP, network: noNetwork, err: errNotLooked}
}

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

// on is the underlay of one interface with an address of each family at most.
func on(link string, addrs ...string) node.Underlay {
	u := node.Underlay{Interface: link, MTU: 1500}
	for _, text := range addrs {
		p := netip.MustParsePrefix(text)
		if p.Addr().Is4() {
			u.PublicIP, u.Local, u.Net = p.Addr(), p.Addr(), p.Masked()
		} else {
			u.PublicIP6, u.Local6, u.Net6 = p.Addr(), p.Addr(), p.Masked()
		}
	}
	return u
}

// wantUnderlay expects want, or where that is zero an error with the text.
func wantUnderlay(t *testing.T, u *underlay, want node.Underlay, text string) {
	t.Helper()
	got, err := detected(t.Context(), u)
	if text != "" {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("found %+v, error %v, want an error with %q", got, err, text)
		}
		return
	}
	if err != nil || got != want {
		t.Errorf("found %+v, %v, want %+v", got, err, want)
	}
}

func TestUnderlayByPattern(t *testing.T) {
	m := newMachine(t)
	m.link("tenure0", "10.5.34.1/24")
	m.link("tenure.1", "10.5.34.0/32")
	m.link("tenure6.1", "10.5.35.0/32")
	m.down(m.link("eth0", "192.0.2.10/24"))
	m.link("eth1", "192.0.2.11/24", "192.0.2.111/24")
	m.link("eth2", "192.0.2.12/24")
	m.link("ens5", "198.51.100.5/24")
	m.link("bare")
	m.link("old", "198.51.100.6/24 deprecated", "198.51.100.66/24")
	m.link("older", "198.51.100.7/24 deprecated")
	m.link("local", "169.254.1.1/16 link")
	m.link("tenured", "198.51.100.8/24") // somebody else's, though it begins alike

	for name, c := range map[string]struct {
		patterns []string
		want     node.Underlay
		text     string
	}{
		"a name":                         {[]string{"eth2"}, on("eth2", "192.0.2.12/24"), ""},
		"the order is the patterns'":     {[]string{"ens*", "eth*"}, on("ens5", "198.51.100.5/24"), ""},
		"and not the interfaces'":        {[]string{"eth2", "ens*"}, on("eth2", "192.0.2.12/24"), ""},
		"a pattern that matches nothing": {[]string{"wlan*", "eth1"}, on("eth1", "192.0.2.11/24"), ""},
		"past one that is down":          {[]string{"eth*"}, on("eth1", "192.0.2.11/24"), ""},
		"past one without an address":    {[]string{"bare", "eth2"}, on("eth2", "192.0.2.12/24"), ""},
		"never our own":                  {[]string{"tenure*"}, on("tenured", "198.51.100.8/24"), ""},
		"never our own by name":          {[]string{"tenure0", "tenure.1", "tenure6.1"}, node.Underlay{}, "no interface matches --iface tenure0, tenure.1, tenure6.1"},
		"never a deprecated address":     {[]string{"old"}, on("old", "198.51.100.66/24"), ""},
		"not even the only one":          {[]string{"older"}, node.Underlay{}, "interface older has no address that it can announce (198.51.100.7 is deprecated)"},
		"never a link-local one":         {[]string{"local"}, node.Underlay{}, "interface local has no address that it can announce (169.254.1.1 is not of global scope)"},
		"down":                           {[]string{"eth0"}, node.Underlay{}, "interface eth0 is down"},
		"no address":                     {[]string{"bare"}, node.Underlay{}, "interface bare has no address that it can announce"},
		"no such interface":              {[]string{"wlan*", "eth9"}, node.Underlay{}, "no interface matches --iface wlan*, eth9"},
	} {
		t.Run(name, func(t *testing.T) { wantUnderlay(t, m.underlay(conf.Daemon{Ifaces: c.patterns}), c.want, c.text) })
	}
}

func TestUnderlayByPublicIP(t *testing.T) {
	m := newMachine(t)
	m.link("tenure0", "10.5.34.1/24")
	m.down(m.link("eth0", "192.0.2.10/24"))
	m.link("eth1", "192.0.2.11/24", "192.0.2.111/24")
	m.link("old", "198.51.100.6/24 deprecated")
	behindNAT := on("eth1", "192.0.2.11/24")
	behindNAT.PublicIP = ip("203.0.113.9")

	for name, c := range map[string]struct {
		public string
		ifaces []string
		want   node.Underlay
		text   string
	}{
		"on an interface":                {"192.0.2.111", nil, on("eth1", "192.0.2.111/24"), ""},
		"on the named one":               {"192.0.2.111", []string{"eth1"}, on("eth1", "192.0.2.111/24"), ""},
		"translated on the way":          {"203.0.113.9", []string{"eth1"}, behindNAT, ""},
		"on none":                        {"203.0.113.9", nil, node.Underlay{}, "--public-ip 203.0.113.9 is on no interface of this node; if it is translated on the way, give --iface too"},
		"deprecated":                     {"198.51.100.6", nil, node.Underlay{}, "--public-ip 198.51.100.6 is on old, but deprecated: no other node is told of it"},
		"on one that is down":            {"192.0.2.10", nil, node.Underlay{}, "interface eth0 is down"},
		"on our own":                     {"10.5.34.1", nil, node.Underlay{}, "10.5.34.1 is on no interface"},
		"the named one is down":          {"192.0.2.10", []string{"eth0"}, node.Underlay{}, "interface eth0 is down"},
		"the named one is not there yet": {"192.0.2.10", []string{"eth9"}, node.Underlay{}, "no interface matches --iface eth9"},
	} {
		t.Run(name, func(t *testing.T) {
			wantUnderlay(t, m.underlay(conf.Daemon{PublicIP: ip(c.public), Ifaces: c.ifaces}), c.want, c.text)
		})
	}
}

func TestUnderlayByRoute(t *testing.T) {
	m := newMachine(t)
	m.up("lo")
	m.link("eth0", "192.0.2.11/24")
	m.link("eth1", "198.51.100.11/24", "198.51.100.111/24")
	m.link("old", "10.9.0.1/24 deprecated", "10.9.1.1/24")
	m.link("older", "10.8.0.1/24 deprecated")
	m.link("six", "10.7.0.1/24", "fd00:7::1/64")
	m.route("203.0.113.0/24", "198.51.100.1")

	for name, c := range map[string]struct {
		endpoint string
		want     node.Underlay
		text     string
	}{
		"on the link":                  {"http://192.0.2.2:2379", on("eth0", "192.0.2.11/24"), ""},
		"behind a router":              {"https://203.0.113.7:2379", on("eth1", "198.51.100.11/24"), ""},
		"never a deprecated source":    {"http://10.9.0.2:2379", on("old", "10.9.1.1/24"), ""},
		"not even the only one":        {"http://10.8.0.2:2379", node.Underlay{}, "interface older has no address that it can announce"},
		"IPv6 etcd, IPv4 underlay":     {"http://[fd00:7::2]:2379", on("six", "10.7.0.1/24", "fd00:7::1/64"), ""},
		"nowhere":                      {"http://10.6.0.2:2379", node.Underlay{}, "no route to 10.6.0.2"},
		"loopback without a default":   {"http://127.0.0.1:2379", node.Underlay{}, "give --iface or --public-ip"},
		"this node, without a default": {"http://192.0.2.11:2379", node.Underlay{}, "give --iface or --public-ip"},
	} {
		t.Run(name, func(t *testing.T) {
			wantUnderlay(t, m.underlay(conf.Daemon{Etcd: conf.Etcd{Endpoints: []string{c.endpoint}}}), c.want, c.text)
		})
	}
	m.route("", "192.0.2.1")
	for _, endpoint := range []string{"http://127.0.0.1:2379", "http://localhost:2379", "http://[::1]:2379", "http://198.51.100.111:2379", "http://10.6.0.2:2379"} {
		t.Run("by the default route: "+endpoint, func(t *testing.T) {
			wantUnderlay(t, m.underlay(conf.Daemon{Etcd: conf.Etcd{Endpoints: []string{endpoint}}}), on("eth0", "192.0.2.11/24"), "")
		})
	}
	t.Run("no name can be resolved", func(t *testing.T) {
		u := m.underlay(conf.Daemon{Etcd: conf.Etcd{Endpoints: []string{"http://etcd.invalid:2379"}}})
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // nobody is asked
		if got, err := detected(ctx, u); err == nil || !strings.Contains(err.Error(), "no etcd endpoint can be resolved") {
			t.Errorf("found %+v, %v", got, err)
		}
	})
}

// TestN2 is flannel #981, #1536 and #2045: of several addresses only the first
// was looked at, of several interfaces the last one won, or an address of the
// other family was announced. Right is, in both families: the named address is
// used, the order of the patterns decides, and neither a deprecated or temporary
// address nor a device of our own is ever taken.
func TestN2(t *testing.T) {
	m := newMachine(t)
	m.up("lo")
	for i := range 40 {
		m.link(fmt.Sprintf("veth%d", i))
	}
	m.link("tenure0", "10.5.34.1/24", "fd00:5:0:22::1/64")
	m.link("tenure.1", "10.5.34.0/32", "fd00:5:0:22::/128")
	m.link("tenure6.1", "fd00:5:0:23::/128")
	// The first is deprecated, the last one a secondary of the second. Of IPv6 the
	// kernel lists the youngest first.
	nic0 := m.link("nic0", "192.0.2.10/25 deprecated", "192.0.2.140/25", "192.0.2.141/25",
		"fd00:1::1/64", "fd00:2::1/64", "2001:db8::2/64", "2001:db8::1/64 deprecated")
	m.link("nic1", "198.51.100.1/25", "198.51.100.2/25", "198.51.100.129/25")
	m.down(m.link("nic2", "198.51.100.200/32", "2001:db8:2::200/64"))
	m.link("six", "2001:db8:6::1/64")
	m.route("203.0.113.0/24", "192.0.2.1") // by the net of the deprecated address
	m.route("10.6.0.0/16", "198.51.100.130")
	if err := m.h.RouteAdd(&netlink.Route{Dst: &net.IPNet{IP: net.IPv4(10, 7, 0, 0), Mask: net.CIDRMask(16, 32)}, LinkIndex: m.up("tenure.1").Attrs().Index}); err != nil {
		t.Fatal(err)
	}
	m.temporary(nic0, "2001:db8:1::100/64")
	const four, six = "192.0.2.140/25", "2001:db8:1::100/64"
	translated := on("nic0", four, six)
	translated.PublicIP = ip("203.0.113.9")
	translated6 := on("nic0", four, six)
	translated6.PublicIP6 = ip("2001:db8:9::9")

	for name, c := range map[string]struct {
		ifaces       []string
		public, etcd string
		need         families // IPv4 if zero
		want         node.Underlay
		text         string
	}{
		"past deprecated and temporary ones":    {ifaces: []string{"nic0"}, want: on("nic0", four, six)},
		"and past what matches without any":     {ifaces: []string{"veth*", "nic*"}, want: on("nic0", four, six)},
		"the first interface of a pattern":      {ifaces: []string{"nic*"}, want: on("nic0", four, six)},
		"the first pattern":                     {ifaces: []string{"nic1", "nic*"}, want: on("nic1", "198.51.100.1/25")},
		"the first that has both families":      {ifaces: []string{"nic1", "nic*"}, need: families{true, true}, want: on("nic0", four, six)},
		"past one without IPv4":                 {ifaces: []string{"six", "nic1"}, want: on("nic1", "198.51.100.1/25")},
		"past one without IPv6":                 {ifaces: []string{"nic1", "six"}, need: families{v6: true}, want: on("six", "2001:db8:6::1/64")},
		"the only one there is":                 {ifaces: []string{"six"}, want: on("six", "2001:db8:6::1/64")},
		"neither lo nor our own":                {ifaces: []string{"*"}, want: on("nic0", four, six)},
		"the secondary address, by itself":      {public: "192.0.2.141", want: on("nic0", "192.0.2.141/25", six)},
		"the secondary address of the pattern":  {ifaces: []string{"nic0"}, public: "192.0.2.141", want: on("nic0", "192.0.2.141/25", six)},
		"the second interface, by its address":  {ifaces: []string{"nic*"}, public: "198.51.100.2", want: on("nic1", "198.51.100.2/25")},
		"and by its third":                      {ifaces: []string{"veth*", "nic*"}, public: "198.51.100.129", want: on("nic1", "198.51.100.129/25")},
		"the oldest IPv6 address, by itself":    {public: "fd00:1::1", want: on("nic0", four, "fd00:1::1/64")},
		"one of each family":                    {public: "192.0.2.141,fd00:2::1", want: on("nic0", "192.0.2.141/25", "fd00:2::1/64")},
		"an address on one that is down":        {ifaces: []string{"nic*"}, public: "198.51.100.200", text: "interface nic2 is down"},
		"the deprecated one of the pattern":     {ifaces: []string{"nic*"}, public: "2001:db8::1", text: "--public-ip 2001:db8::1 is on nic0, but deprecated"},
		"an address of none of them":            {ifaces: []string{"nic*"}, public: "203.0.113.9", want: translated},
		"an IPv6 address of none of them":       {ifaces: []string{"nic*"}, public: "2001:db8:9::9", want: translated6},
		"the deprecated address":                {public: "192.0.2.10", text: "--public-ip 192.0.2.10 is on nic0, but deprecated"},
		"the deprecated IPv6 address":           {public: "2001:db8::1", text: "--public-ip 2001:db8::1 is on nic0, but deprecated"},
		"an address of our own device":          {public: "fd00:5:0:22::1", text: "is on no interface of this node"},
		"on two interfaces":                     {public: "198.51.100.1,2001:db8::2", text: "--public-ip 198.51.100.1 and 2001:db8::2 are on two interfaces"},
		"by a route from the deprecated one":    {etcd: "http://203.0.113.2:2379", want: on("nic0", four, six)},
		"by a route from the third":             {etcd: "http://10.6.0.2:2379", want: on("nic1", "198.51.100.129/25")},
		"towards an etcd of the other family":   {etcd: "http://[fd00:2::2]:2379", want: on("nic0", four, "fd00:2::1/64")},
		"and from the other address":            {etcd: "http://[fd00:1::2]:2379", want: on("nic0", four, "fd00:1::1/64")},
		"by a route from a temporary one":       {etcd: "http://[2001:db8:1::2]:2379", want: on("nic0", four, six)},
		"by the only family there is":           {etcd: "http://[2001:db8:6::2]:2379", want: on("six", "2001:db8:6::1/64")},
		"past an endpoint without a route":      {etcd: "http://10.99.0.1:2379,http://[2001:db8:6::2]:2379", want: on("six", "2001:db8:6::1/64")},
		"not by a route through a device of us": {etcd: "http://10.7.0.2:2379", text: "the route to 10.7.0.2 goes through tenure.1"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := conf.Daemon{Ifaces: c.ifaces}
			for text := range strings.SplitSeq(c.public, ",") {
				if a, err := netip.ParseAddr(text); err == nil && a.Is4() {
					cfg.PublicIP = a
				} else if err == nil {
					cfg.PublicIP6 = a
				}
			}
			if c.etcd != "" {
				cfg.Etcd.Endpoints = strings.Split(c.etcd, ",")
			}
			u := m.underlay(cfg)
			if c.need != (families{}) {
				u.network = func() *conf.Network { return &conf.Network{EnableIPv4: c.need.v4, EnableIPv6: c.need.v6} }
			}
			wantUnderlay(t, u, c.want, c.text)
		})
	}
}

// temporary gives a link an address from which the kernel makes a temporary one
// (RFC 8981), which it then prefers, and waits until that may be used.
func (m machine) temporary(l netlink.Link, addr string) {
	m.t.Helper()
	if err := m.ns.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv6/conf/"+l.Attrs().Name+"/use_tempaddr", []byte("2"), 0)
	}); err != nil {
		m.t.Fatal(err)
	}
	a, err := netlink.ParseAddr(addr)
	if err != nil {
		m.t.Fatal(err)
	}
	a.Flags, a.ValidLft, a.PreferedLft = unix.IFA_F_MANAGETEMPADDR|unix.IFA_F_NODAD, 7*24*3600, 24*3600
	if err := m.h.AddrAdd(l, a); err != nil {
		m.t.Fatalf("add %s: %v", addr, err)
	}
	to := a.IP.Mask(a.Mask)
	to[len(to)-1] = 0xff
	ctx, cancel := context.WithTimeout(m.t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		routes, err := m.h.RouteGet(to)
		if err == nil && len(routes) == 1 && routes[0].Src != nil && !routes[0].Src.Equal(a.IP) {
			return // the kernel sends from another address of this prefix
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			m.t.Fatalf("the kernel made no temporary address of %s: %v %v", addr, routes, err)
		}
	}
}

// TestUnderlayStays: what was found once serves on while nothing better is
// there, and follows when there is.
func TestUnderlayStays(t *testing.T) {
	m := newMachine(t)
	u := m.underlay(conf.Daemon{Ifaces: []string{"eth0"}})
	if _, ok := u.Get(); ok || u.Err() == nil {
		t.Error("an underlay is known before the first look")
	}
	u.look(t.Context())
	if err := u.Err(); err == nil || !strings.Contains(err.Error(), "no interface matches --iface eth0") {
		t.Errorf("Ready: %v, want the reason", err)
	}
	eth0 := m.link("eth0", "192.0.2.11/24")
	u.look(t.Context())
	if got, ok := u.Get(); !ok || got != on("eth0", "192.0.2.11/24") || u.Err() != nil {
		t.Errorf("found %+v, %t, %v", got, ok, u.Err())
	}
	m.down(eth0)
	u.look(t.Context())
	if got, ok := u.Get(); !ok || got != on("eth0", "192.0.2.11/24") || u.Err() != nil {
		t.Errorf("while it is down: %+v, %t, %v", got, ok, u.Err())
	}
	if err := m.h.LinkSetMTU(m.up("eth0"), 9000); err != nil {
		t.Fatal(err)
	}
	u.look(t.Context())
	if got, _ := u.Get(); got.MTU != 9000 {
		t.Errorf("MTU %d, want the interface's new one", got.MTU)
	}
}

// TestUnderlayOfIPv6Only: a machine without IPv4 has an underlay, whether etcd is
// given by address or by name, and keeps it where the link takes the address along.
func TestUnderlayOfIPv6Only(t *testing.T) {
	m := newMachine(t)
	m.up("lo")
	eth0 := m.link("eth0", "2001:db8::11/64")
	m.link("eth1", "2001:db8:1::11/64")
	m.route("", "2001:db8:1::1")
	onlyIPv6 := func() *conf.Network { return &conf.Network{EnableIPv6: true} }
	var asked []string
	names := func(_ context.Context, network, host string) ([]netip.Addr, error) {
		asked = append(asked, network+" "+host)
		if network == "ip6" {
			return []netip.Addr{ip("2001:db8::2")}, nil
		}
		if host == "both.example" {
			return []netip.Addr{ip("192.0.2.2")}, nil
		}
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	for name, c := range map[string]struct {
		endpoint string
		network  func() *conf.Network
		want     node.Underlay
		asked    []string
	}{
		"by address":                     {"http://[2001:db8::2]:2379", onlyIPv6, on("eth0", "2001:db8::11/64"), nil},
		"by address, no network yet":     {"http://[2001:db8::2]:2379", noNetwork, on("eth0", "2001:db8::11/64"), nil},
		"by loopback":                    {"http://[::1]:2379", onlyIPv6, on("eth1", "2001:db8:1::11/64"), nil},
		"by its own address":             {"http://[2001:db8::11]:2379", onlyIPv6, on("eth1", "2001:db8:1::11/64"), nil},
		"by IPv4's loopback":             {"http://127.0.0.1:2379", noNetwork, on("eth1", "2001:db8:1::11/64"), nil},
		"by a name of IPv6":              {"http://six.example:2379", onlyIPv6, on("eth0", "2001:db8::11/64"), []string{"ip6 six.example"}},
		"by it, no network yet":          {"http://six.example:2379", noNetwork, on("eth0", "2001:db8::11/64"), []string{"ip4 six.example", "ip6 six.example"}},
		"by a name whose IPv4 is no way": {"http://both.example:2379", noNetwork, on("eth0", "2001:db8::11/64"), []string{"ip4 both.example", "ip6 both.example"}},
	} {
		t.Run(name, func(t *testing.T) {
			u := m.underlay(conf.Daemon{Etcd: conf.Etcd{Endpoints: []string{c.endpoint}}})
			u.network, u.resolve, asked = c.network, names, nil
			wantUnderlay(t, u, c.want, "")
			if diff := cmp.Diff(c.asked, asked); diff != "" {
				t.Errorf("looked up (-want +got):\n%s", diff)
			}
		})
	}

	u := m.underlay(conf.Daemon{Ifaces: []string{"eth0"}})
	u.look(t.Context())
	if got, ok := u.Get(); !ok || got != on("eth0", "2001:db8::11/64") || !cmp.Equal(u.public(), []netip.Addr{ip("2001:db8::11")}, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })) {
		t.Errorf("found %+v, %t, %v", got, ok, u.public())
	}
	if !u.local(ip("2001:db8::11")) || u.local(ip("2001:db8::12")) || u.local(ip("::1")) {
		t.Error("what is on this machine, and what is not, is mixed up")
	}
	u.network = func() *conf.Network { return &conf.Network{EnableIPv4: true, EnableIPv6: true} }
	if _, ok := u.Get(); !ok || u.Err() == nil || !strings.Contains(u.Err().Error(), "interface eth0 has no IPv4 address") {
		t.Errorf("pods of both families, of which IPv6 can go on: %t, %v", ok, u.Err())
	}
	u.network = func() *conf.Network { return &conf.Network{EnableIPv4: true} }
	if _, ok := u.Get(); ok || u.Err() == nil {
		t.Errorf("pods of IPv4: %t, %v", ok, u.Err())
	}
	u.network = onlyIPv6
	m.down(eth0)                               // its address goes with it
	for _, back := range []bool{false, true} { // the link comes back before the address
		if back {
			m.up("eth0")
		}
		u.look(t.Context())
		if got, ok := u.Get(); !ok || got.Local6 != ip("2001:db8::11") {
			t.Errorf("the address has gone, the link is up %t: %+v, %t", back, got, ok)
		}
	}
	if err := m.h.AddrAdd(eth0, &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP("2001:db8::77"), Mask: net.CIDRMask(64, 128)}, Flags: unix.IFA_F_NODAD}); err != nil {
		t.Fatal(err)
	}
	u.look(t.Context())
	if got, ok := u.Get(); !ok || got != on("eth0", "2001:db8::77/64") {
		t.Errorf("with another address: %+v, %t", got, ok)
	}
}

func TestTaken(t *testing.T) {
	m := newMachine(t)
	m.up("lo")
	m.link("tenure0", "10.5.34.1/24")
	m.link("eth0", "192.0.2.11/24")
	m.link("docker0", "10.5.0.1/16", "fd00:5::1/64")
	m.link("tenure6.1", "fd00:9::/128")
	u := m.underlay(conf.Daemon{Etcd: conf.Etcd{Endpoints: []string{"http://10.6.0.2:2379", "http://[fd00::2]:2379", "http://127.0.0.1:2379", "http://etcd.example:2379"}}})
	u.reached = func() []netip.Addr {
		return []netip.Addr{netip.MustParseAddr("10.6.0.2"), netip.MustParseAddr("10.6.0.3")}
	}
	all, err := u.taken()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, n := range all {
		got = append(got, n.Prefix.String()+" "+n.What)
	}
	want := []string{"192.0.2.0/24 interface eth0", "10.5.0.0/16 interface docker0", "fd00:5::/64 interface docker0",
		"10.6.0.2/32 etcd endpoint 10.6.0.2", "fd00::2/128 etcd endpoint fd00::2",
		"10.6.0.3/32 etcd at 10.6.0.3"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("taken (-want +got):\n%s", diff)
	}
}

func TestOwnLinks(t *testing.T) {
	m := newMachine(t)
	m.link("tenure0", "10.5.34.1/24")
	m.link("tenure.9") // not a vxlan device
	for i, name := range []string{"tenure.1", "tenure6.1", "other.1"} {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		if err := m.h.LinkAdd(&netlink.Vxlan{LinkAttrs: attrs, VxlanId: 1 + i, Port: 8472 + i}); err != nil {
			t.Fatal(err)
		}
	}
	got, err := m.underlay(conf.Daemon{}).ownLinks()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"tenure.1", "tenure6.1"}, got); diff != "" {
		t.Errorf("own vxlan devices (-want +got):\n%s", diff)
	}
}

// TestFlannelUp tells a flannel that runs from what it left behind.
func TestFlannelUp(t *testing.T) {
	for name, want := range map[string]bool{"flannel.1": true, "flannel-v6.1": true, "flannel0": false, "eth1": false} {
		m := newMachine(t)
		u := &underlay{handle: m.h}
		l := m.link("a0")
		m.down(l)
		if err := m.h.LinkSetName(l, name); err != nil {
			t.Fatal(err)
		}
		if u.flannelUp() {
			t.Errorf("%s counts as up while it is down", name)
		}
		m.up(name)
		if got := u.flannelUp(); got != want {
			t.Errorf("%s is up: %t, want %t", name, got, want)
		}
	}
}
