package main

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/daemon/node"
)

// card is a link for the choice: its name, what it is, and its addresses, each
// with what is special about it behind a space.
type card struct {
	name   string
	kind   string // device if empty
	master string
	down   bool
	alias  string
	addrs  []string
}

// cards are the devices as the kernel would list them.
func cards(t *testing.T, all ...card) []device {
	t.Helper()
	index := map[string]int{}
	for i, w := range all {
		index[w.name] = i + 1
	}
	var links []netlink.Link
	var addrs []netlink.Addr
	for i, w := range all {
		attrs := netlink.LinkAttrs{Name: w.name, Index: i + 1, MTU: 1500, MasterIndex: index[w.master], Alias: w.alias, Flags: unix.IFF_UP}
		if w.down {
			attrs.Flags = 0
		}
		if w.kind == "" {
			w.kind = "device"
		}
		links = append(links, &netlink.GenericLink{LinkAttrs: attrs, LinkType: w.kind})
		for _, text := range w.addrs {
			text, special, _ := strings.Cut(text, " ")
			a, err := netlink.ParseAddr(text)
			if err != nil {
				t.Fatal(err)
			}
			a.LinkIndex = i + 1
			a.Flags = map[string]int{"deprecated": unix.IFA_F_DEPRECATED, "temporary": unix.IFA_F_TEMPORARY,
				"tentative": unix.IFA_F_TENTATIVE, "optimistic": unix.IFA_F_TENTATIVE | unix.IFA_F_OPTIMISTIC,
				"duplicate": unix.IFA_F_DADFAILED | unix.IFA_F_TENTATIVE, "stable": unix.IFA_F_MANAGETEMPADDR | unix.IFA_F_STABLE_PRIVACY}[special]
			if special == "link" {
				a.Scope = unix.RT_SCOPE_LINK
			}
			addrs = append(addrs, *a)
		}
	}
	return devices("tenure", links, addrs)
}

// TestUnfit: of one interface the address that lasts is taken, in either family,
// and where there is none, the error says of each why not.
func TestUnfit(t *testing.T) {
	for special, said := range map[string]string{"deprecated": "deprecated", "temporary": "temporary", "tentative": "tentative",
		"optimistic": "tentative", "duplicate": "another machine's too", "link": "not of global scope"} {
		t.Run(special, func(t *testing.T) {
			c := choice{ifaces: []string{"eth0"}, devices: cards(t, card{name: "eth0", addrs: []string{"2001:db8::9/64 " + special, "fe80::1/64 link"}})}
			if u, err := c.choose(); err == nil || !strings.Contains(err.Error(), "2001:db8::9 is "+said) || strings.Contains(err.Error(), "fe80") {
				t.Errorf("found %+v, error %v", u, err)
			}
			c.devices = cards(t, card{name: "eth0", addrs: []string{"2001:db8::9/64 " + special, "fe80::1/64 link", "2001:db8::1/64 stable"}})
			c.sources = map[int]netip.Addr{1: ip("2001:db8::9")}
			if u, err := c.choose(); err != nil || u != on("eth0", "2001:db8::1/64") {
				t.Errorf("found %+v, error %v", u, err)
			}
		})
	}
	// The bit that says temporary of IPv6 says secondary of IPv4.
	c := choice{ifaces: []string{"eth0"}, devices: cards(t, card{name: "eth0", addrs: []string{"192.0.2.1/24 temporary"}})}
	if u, err := c.choose(); err != nil || u != on("eth0", "192.0.2.1/24") {
		t.Errorf("found %+v, error %v", u, err)
	}
}

// TestIPv6Address: the one asked for, else the one in use, else the route's, else
// the kernel's, else the first.
func TestIPv6Address(t *testing.T) {
	eth0 := cards(t, card{name: "eth0", addrs: []string{"2001:db8::1/64", "2001:db8::2/64", "2001:db8::3/64", "2001:db8::4/64", "2001:db8::5/64"}})
	c := choice{devices: eth0, public6: ip("2001:db8::5"), before: node.Underlay{Local6: ip("2001:db8::4")},
		toEtcd: []way{{dst: ip("2001:db8::99"), link: 1, src: ip("2001:db8::3")}}, sources: map[int]netip.Addr{1: ip("2001:db8::2")}}
	for _, want := range []string{"2001:db8::5/64", "2001:db8::4/64", "2001:db8::3/64", "2001:db8::2/64", "2001:db8::1/64"} {
		if u, err := c.choose(); err != nil || u != on("eth0", want) {
			t.Errorf("found %+v, %v, want %s", u, err, want)
		}
		switch { // less and less is known
		case c.public6.IsValid():
			c.public6 = netip.Addr{}
		case c.before.Local6.IsValid():
			c.before = node.Underlay{}
		case c.toEtcd[0].src.IsValid():
			c.toEtcd[0].src = netip.Addr{}
		default:
			c.sources = nil
		}
	}
}

// TestInnerBridges: what leads to this machine's own containers is never the
// underlay by default, nor by a pattern; a bridge that the machine is reached by
// is.
func TestInnerBridges(t *testing.T) {
	all := cards(t,
		card{name: "docker0", kind: "bridge", addrs: []string{"172.17.0.1/16"}},
		card{name: "veth1", kind: "veth", master: "docker0"},
		card{name: "virbr0", kind: "bridge", addrs: []string{"192.168.122.1/24"}},
		card{name: "tap0", kind: "tun", master: "virbr0"},
		card{name: "pod", kind: "veth", alias: "tenure 1 2 3 4 10.5.1.2/24", addrs: []string{"198.51.100.77/32"}},
		card{name: "br0", kind: "bridge", addrs: []string{"192.0.2.11/24"}},
		card{name: "eth0", master: "br0"},
		card{name: "tap1", kind: "tun", master: "br0"},
		card{name: "br1", kind: "bridge", addrs: []string{"198.51.100.11/24"}},
		card{name: "vnet", kind: "veth", master: "br1"},
	)
	link := func(name string) int {
		for _, d := range all {
			if d.name == name {
				return d.index
			}
		}
		t.Fatalf("no %s", name)
		return 0
	}
	world := way{dst: ip("1.1.1.1"), link: link("br0"), src: ip("192.0.2.11")}
	by := func(name, dst string) []way { return []way{{dst: ip(dst), link: link(name)}} }
	for name, c := range map[string]struct {
		choice
		want node.Underlay
		text string
	}{
		"etcd in a container":          {choice{toEtcd: by("docker0", "172.17.0.2"), defaults: []way{world}}, on("br0", "192.0.2.11/24"), ""},
		"etcd in a guest":              {choice{toEtcd: by("virbr0", "192.168.122.9"), defaults: []way{world}}, on("br0", "192.0.2.11/24"), ""},
		"with no way out":              {choice{toEtcd: by("docker0", "172.17.0.2")}, node.Underlay{}, "etcd is on this machine"},
		"etcd by the machine's bridge": {choice{toEtcd: by("br0", "192.0.2.2"), defaults: by("br1", "1.1.1.1")}, on("br0", "192.0.2.11/24"), ""},
		"a container's own bridge":     {choice{toEtcd: by("br1", "198.51.100.2"), defaults: by("br1", "1.1.1.1")}, on("br1", "198.51.100.11/24"), ""},
		"any":                          {choice{ifaces: []string{"*"}, defaults: []way{world}}, on("br0", "192.0.2.11/24"), ""},
		"one with the way out":         {choice{ifaces: []string{"br[1]"}, defaults: by("br1", "1.1.1.1")}, on("br1", "198.51.100.11/24"), ""},
		"only those match":             {choice{ifaces: []string{"docker*", "virbr?"}}, node.Underlay{}, "but docker0, virbr0, a bridge of this machine's containers; if that is meant, give its whole name"},
		"the whole name":               {choice{ifaces: []string{"docker0"}}, on("docker0", "172.17.0.1/16"), ""},
		"never a pod's":                {choice{ifaces: []string{"pod"}}, node.Underlay{}, "no interface matches --iface pod"},
		"nor by address":               {choice{public: ip("198.51.100.77")}, node.Underlay{}, "is on no interface of this node"},
	} {
		c.devices, c.need = all, families{v4: true}
		if u, err := c.choose(); u != c.want || (err == nil) != (c.text == "") || err != nil && !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: found %+v, error %v, want %+v %s", name, u, err, c.want, c.text)
		}
	}
}

// TestWaysOut: an etcd on this machine asks for the world's route, in the family
// that the pods have; what is routed by nothing says so.
func TestWaysOut(t *testing.T) {
	all := cards(t,
		card{name: "lo", addrs: []string{"198.51.100.1/32"}},
		card{name: "eth0", addrs: []string{"192.0.2.11/24"}},
		card{name: "eth1", addrs: []string{"2001:db8::11/64"}},
		card{name: "tun0", kind: "tun", addrs: []string{"10.9.0.1/32", "2001:db8:9::1/128"}},
	)
	all[0].loopback = true
	world4, world6 := way{dst: ip("1.1.1.1"), link: 2, src: ip("192.0.2.11")}, way{dst: ip("2000::1"), link: 3, src: ip("2001:db8::11")}
	nowhere := func(dst string) way { return way{dst: ip(dst), err: unix.ENETUNREACH} }
	for name, c := range map[string]struct {
		choice
		want node.Underlay
		text string
	}{
		"IPv4 first":             {choice{toEtcd: []way{{dst: ip("127.0.0.1"), link: 1}}, defaults: []way{world4, world6}}, on("eth0", "192.0.2.11/24"), ""},
		"IPv6 where that is all": {choice{toEtcd: []way{{dst: ip("::1"), link: 1}}, defaults: []way{nowhere("1.1.1.1"), world6}}, on("eth1", "2001:db8::11/64"), ""},
		"its own address":        {choice{toEtcd: []way{{dst: ip("2001:db8::11"), link: 1}}, defaults: []way{world4}}, on("eth0", "192.0.2.11/24"), ""},
		"its address on lo":      {choice{toEtcd: []way{{dst: ip("198.51.100.1"), link: 1}}, defaults: []way{world4}}, on("eth0", "192.0.2.11/24"), ""},
		"no way out":             {choice{toEtcd: []way{{dst: ip("::1"), link: 1}}, defaults: []way{nowhere("1.1.1.1"), nowhere("2000::1")}}, node.Underlay{}, "etcd is on this machine: no route to 1.1.1.1 or 2000::1"},
		"no name resolves":       {choice{unresolved: errNotLooked}, node.Underlay{}, "no etcd endpoint can be resolved"},
		"but it is known here":   {choice{unresolved: errNotLooked, announced: []netip.Addr{ip("203.0.113.7"), ip("2001:db8::11")}}, on("eth1", "2001:db8::11/64"), ""},
		"the second of a name":   {choice{toEtcd: []way{nowhere("203.0.113.1"), {dst: ip("2001:db8::2"), link: 3}}}, on("eth1", "2001:db8::11/64"), ""},
		"none of a name":         {choice{toEtcd: []way{nowhere("203.0.113.1"), nowhere("2001:db8:5::1")}}, node.Underlay{}, "no route to 203.0.113.1 or 2001:db8:5::1"},
		"a link that has gone":   {choice{toEtcd: []way{{dst: ip("203.0.113.1"), link: 9}}}, node.Underlay{}, "by no interface of other nodes"},
		"--public-ip on lo":      {choice{public: ip("198.51.100.1")}, node.Underlay{}, "is on lo, which leads to no other node"},
		"a pattern, and lo":      {choice{ifaces: []string{"l*", "eth0"}}, on("eth0", "192.0.2.11/24"), ""},
		"a tunnel":               {choice{ifaces: []string{"tun0"}}, on("tun0", "10.9.0.1/32", "2001:db8:9::1/128"), ""},
	} {
		c.devices, c.need = all, families{v4: true}
		if u, err := c.choose(); u != c.want || (err == nil) != (c.text == "") || err != nil && !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: found %+v, error %v, want %+v %s", name, u, err, c.want, c.text)
		}
	}
	behind := choice{ifaces: []string{"eth0"}, public: ip("198.51.100.1"), devices: all}
	want := on("eth0", "192.0.2.11/24")
	want.PublicIP = ip("198.51.100.1")
	if u, err := behind.choose(); err != nil || u != want {
		t.Errorf("an address on lo, announced for eth0: %+v, %v", u, err)
	}
}

// TestFarEndIsTheLink: what lies on a point-to-point link is its other end.
func TestFarEndIsTheLink(t *testing.T) {
	a, err := netlink.ParseAddr("192.0.2.1/32")
	if err != nil {
		t.Fatal(err)
	}
	far, err := netlink.ParseIPNet("192.0.2.9/32")
	if err != nil {
		t.Fatal(err)
	}
	a.Peer = far
	if got, ok := addressOf(*a); !ok || got.ip != ip("192.0.2.1") || got.net != netip.MustParsePrefix("192.0.2.9/32") {
		t.Errorf("%+v", got)
	}
}

// TestAwaited: a --public-ip that was on an interface is waited for where it has
// gone, and one that was on none is translated on the way.
func TestAwaited(t *testing.T) {
	c := choice{ifaces: []string{"eth*"}, public6: ip("2001:db8::11"), need: families{v6: true},
		devices: cards(t, card{name: "eth0", addrs: []string{"2001:db8:7::1/64"}}, card{name: "eth1", addrs: []string{"2001:db8::11/64"}})}
	first, err := c.choose()
	if want := on("eth1", "2001:db8::11/64"); err != nil || first != want {
		t.Fatalf("found %+v, %v", first, err)
	}
	gone := cards(t, card{name: "eth0", addrs: []string{"2001:db8:7::1/64"}}, card{name: "eth1", down: true})
	c.devices = gone
	translated := on("eth0", "2001:db8:7::1/64")
	translated.PublicIP6 = c.public6
	if u, err := c.choose(); err != nil || u != translated {
		t.Errorf("an address that never was here: %+v, %v", u, err)
	}
	c.before = first
	if u, err := c.choose(); err == nil || !strings.Contains(err.Error(), "has gone from eth1") {
		t.Errorf("an address that has gone: %+v, %v", u, err)
	}
	c.devices = cards(t, card{name: "eth0", addrs: []string{"2001:db8:7::1/64"}}, card{name: "eth1", addrs: []string{"2001:db8::11/64 tentative"}})
	c.before = node.Underlay{}
	if u, err := c.choose(); err == nil || !strings.Contains(err.Error(), "is on eth1, but tentative") {
		t.Errorf("an address that is about to come: %+v, %v", u, err)
	}
}

// TestKeep: what was found stays in use while there is nothing in its place.
func TestKeep(t *testing.T) {
	both, four, six := on("eth0", "192.0.2.1/24", "2001:db8::1/64"), on("eth0", "192.0.2.2/24"), on("eth0", "2001:db8::2/64")
	mixed := func(a, b string) node.Underlay { return on("eth0", a, b) }
	mixed1 := on("eth1", "198.51.100.1/24", "2001:db8::1/64")
	there := cards(t, card{name: "eth0"}, card{name: "eth1"})
	for name, c := range map[string]struct {
		before, found node.Underlay
		need          families
		want          node.Underlay
	}{
		"nothing before":               {node.Underlay{}, four, families{true, true}, four},
		"IPv6 gone, not needed":        {both, four, families{v4: true}, four},
		"IPv6 gone, and needed":        {both, four, families{true, true}, mixed("192.0.2.2/24", "2001:db8::1/64")},
		"IPv4 gone, and needed":        {both, six, families{true, true}, mixed("192.0.2.1/24", "2001:db8::2/64")},
		"IPv4 gone, not needed":        {both, six, families{v6: true}, six},
		"another interface, whole":     {both, on("eth1", "198.51.100.1/24"), families{v4: true}, on("eth1", "198.51.100.1/24")},
		"another interface, lesser":    {both, on("eth1", "198.51.100.1/24"), families{true, true}, both},
		"in place of one that is gone": {on("gone0", "192.0.2.1/24", "2001:db8::1/64"), on("eth1", "198.51.100.1/24"), families{true, true}, mixed1},
	} {
		if got := keep(c.before, c.found, c.need, there); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// TestLacks: what is missing is said for the family that lacks it.
func TestLacks(t *testing.T) {
	c := choice{devices: cards(t, card{name: "eth0", addrs: []string{"192.0.2.1/24", "2001:db8::9/64 temporary"}})}
	four, six := on("eth0", "192.0.2.1/24"), on("eth0", "2001:db8::1/64")
	for name, one := range map[string]struct {
		u    node.Underlay
		need families
		text []string // nil: nothing
	}{
		"has it":         {four, families{v4: true}, nil},
		"needs neither":  {node.Underlay{Interface: "eth0"}, families{}, nil},
		"no IPv6":        {four, families{true, true}, []string{"interface eth0 has no IPv6 address", "2001:db8::9 is temporary", "--iface"}},
		"no IPv4":        {six, families{true, true}, []string{"interface eth0 has no IPv4 address", "the pods' IPv4 needs one"}},
		"IPv4, not both": {six, families{v6: true}, nil},
	} {
		err := c.lacks(one.u, one.need)
		if (err == nil) != (one.text == nil) {
			t.Errorf("%s: %v", name, err)
		}
		for _, part := range one.text {
			if err != nil && !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v, want %q in it", name, err, part)
			}
		}
	}
	c.public6 = ip("2001:db8::77")
	if err := c.lacks(four, families{v6: true}); err == nil || !strings.Contains(err.Error(), "announced as from 2001:db8::77") {
		t.Errorf("behind a translator: %v", err)
	}
}
