package dataplane_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tenure-cni/tenure/daemon/dataplane"
	"github.com/tenure-cni/tenure/daemon/dataplane/fakekernel"
	"github.com/tenure-cni/tenure/test/netnstest"
)

const (
	instance = "tenure"
	bridge   = "tenure0"
	overlay  = "tenure.1"
	overlay6 = "tenure6.1"
	underlay = "up0"
	port     = "port0"
)

// machine is a kernel under test, a second way into it for changes behind its
// back, and its fence.
type machine struct {
	kernel dataplane.Kernel
	vandal dataplane.Kernel
	guard  *fakekernel.Guard
	// ns is nil for the fake.
	ns *netnstest.NS
	// far is the machine at the other end of the underlay, 192.0.2.2; it has
	// no kernel of its own until openKernel.
	far *machine
}

func fakeMachine(*testing.T) *machine {
	guard := &fakekernel.Guard{}
	k := fakekernel.New(guard, underlay)
	return &machine{kernel: k, vandal: k, guard: guard}
}

// linuxMachine is a namespace with one underlay interface that leads to a
// second namespace.
func linuxMachine(t *testing.T, iptables string) *machine {
	t.Helper()
	m := &machine{ns: netnstest.New(t), guard: &fakekernel.Guard{}}
	other := netnstest.New(t)
	m.sh(t, "ip link add %s type veth peer name up0 netns %s", underlay, other.Path())
	m.sh(t, "ip addr add 192.0.2.1/24 dev %s && echo 1 >/proc/sys/net/ipv6/conf/%[1]s/keep_addr_on_down && ip addr add 2001:db8::1/64 dev %[1]s nodad && ip link set lo up && ip link set %[1]s up", underlay)
	m.far = &machine{ns: other, guard: &fakekernel.Guard{}}
	m.far.sh(t, "ip addr add 192.0.2.2/24 dev up0 && ip addr add 2001:db8::2/64 dev up0 nodad && ip link set up0 up")
	m.kernel, m.vandal = m.openKernel(t, iptables), m.openKernel(t, iptables)
	return m
}

func (m *machine) openKernel(t *testing.T, iptables string) dataplane.Kernel {
	t.Helper()
	k, err := dataplane.OpenLinux(dataplane.LinuxOptions{
		Name: instance, Guard: m.guard, NetNS: m.ns.FD(), IPTables: iptables,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k
}

// sh runs a shell command in the machine's namespace.
func (m *machine) sh(t *testing.T, format string, args ...any) string {
	t.Helper()
	script := format
	if len(args) > 0 {
		script = fmt.Sprintf(format, args...)
	}
	var out []byte
	err := m.ns.Do(func() (err error) {
		out, err = exec.Command("sh", "-ec", script).CombinedOutput()
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v: %s", script, err, out)
	}
	return string(out)
}

func needsRoot(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs root and network namespaces")
	}
}

func (m *machine) read(t *testing.T) dataplane.State {
	t.Helper()
	s, err := m.kernel.Read(context.Background(), dataplane.Families{V4: true, V6: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Faults) > 0 {
		t.Fatalf("faults: %v", s.Faults)
	}
	return s
}

// change applies one change behind the data plane's back.
func (m *machine) change(t *testing.T, changes ...dataplane.Change) {
	t.Helper()
	if _, err := m.vandal.Read(context.Background(), dataplane.Families{V4: true, V6: true}); err != nil {
		t.Fatal(err)
	}
	for _, c := range changes {
		if err := m.vandal.Apply(context.Background(), dataplane.Op{Change: c}); err != nil {
			t.Fatalf("%s: %v", c, err)
		}
	}
}

// converge makes one pass, requires that a second has nothing to do, and
// returns what the first one did.
func (m *machine) converge(t *testing.T, want dataplane.Desired) []dataplane.Op {
	t.Helper()
	ops, _ := dataplane.Plan(want, m.read(t))
	for _, op := range ops {
		if err := m.kernel.Apply(context.Background(), op); err != nil {
			t.Fatalf("%s: %v\nafter the plan:\n%s", op, err, text(ops))
		}
	}
	if again, _ := dataplane.Plan(want, m.read(t)); len(again) > 0 {
		t.Fatalf("second pass writes:\n%s\nafter the first wrote:\n%s", text(again), text(ops))
	}
	return ops
}

func text(ops []dataplane.Op) string {
	lines := make([]string, len(ops))
	for i, op := range ops {
		lines[i] = op.String()
	}
	return strings.Join(lines, "\n")
}

// sameState compares what matters: indexes change when a link is made anew.
func sameState(t *testing.T, want, got dataplane.State) {
	t.Helper()
	opts := cmp.Options{
		cmpopts.EquateComparable(netip.Prefix{}, netip.Addr{}, dataplane.Route{}, dataplane.Addr{},
			dataplane.FDB{}, dataplane.Neigh{}, dataplane.Tunnel{}, dataplane.Port{}),
		cmpopts.IgnoreFields(dataplane.Link{}, "Index"),
		cmpopts.EquateEmpty(),
	}
	if diff := cmp.Diff(withoutLinkLocal(want), withoutLinkLocal(got), opts); diff != "" {
		t.Errorf("state differs (-want +got):\n%s", diff)
	}
}

// withoutLinkLocal leaves out what the kernel makes by itself, in its time.
func withoutLinkLocal(s dataplane.State) dataplane.State {
	s = s.Clone()
	maps.DeleteFunc(s.Addrs, func(a dataplane.Addr, _ struct{}) bool { return a.Prefix.Addr().IsLinkLocalUnicast() })
	maps.DeleteFunc(s.Routes, func(r dataplane.Route, _ struct{}) bool { return r.Dst.Addr().IsLinkLocalUnicast() })
	return s
}

func mac(n int) dataplane.MAC {
	return dataplane.MAC{0x0a, 0x58, 0, 0, byte(n >> 8), byte(n)}
}

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }

// peer n holds 10.5.n.0/24.
func peer(n int) dataplane.Peer {
	return dataplane.Peer{
		Subnet:   netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, byte(n), 0}), 24),
		PublicIP: netip.AddrFrom4([4]byte{192, 0, 2, byte(n)}),
		MAC:      mac(n),
	}
}

// node34 wants everything: 10.5.34.0/24 with the given peers.
func node34(peers ...dataplane.Peer) dataplane.Desired {
	return dataplane.Desired{
		Name:     instance,
		Networks: []netip.Prefix{prefix("10.5.0.0/16")},
		Bridge: dataplane.Bridge{
			MAC: mac(1000), MTU: 1450, Gateways: []netip.Prefix{prefix("10.5.34.1/24")},
		},
		Overlays: []dataplane.Vxlan{{
			VNI: 1, Port: 8472, Local: addr("192.0.2.1"), Parent: underlay,
			MAC: mac(34), MTU: 1450, Addr: prefix("10.5.34.0/32"),
		}},
		Peers:           peers,
		Masq:            true,
		MasqRandomFully: true,
		ForwardAccept:   true,
	}
}

// peer6 n holds fd00:5:0:n::/64, with the MAC that it has for IPv4 too.
func peer6(n int) dataplane.Peer {
	return dataplane.Peer{
		Subnet:   netip.PrefixFrom(at6("fd00:5::", 7, n), 64),
		PublicIP: at6("2001:db8::", 15, n),
		MAC:      mac(n),
	}
}

// at6 is an address with one byte of it set.
func at6(base string, i, b int) netip.Addr {
	a := addr(base).As16()
	a[i] = byte(b)
	return netip.AddrFrom16(a)
}

// withIPv6 adds the second family: fd00:5:0:22::/64, and the peers.
func withIPv6(d dataplane.Desired, peers ...dataplane.Peer) dataplane.Desired {
	d.Networks = append(slices.Clone(d.Networks), prefix("fd00:5::/48"))
	d.Bridge.MTU = 1430
	d.Bridge.Gateways = append(slices.Clone(d.Bridge.Gateways), prefix("fd00:5:0:22::1/64"))
	d.Overlays = append(slices.Clone(d.Overlays), dataplane.Vxlan{
		VNI: 1, Port: 8472, Local: addr("2001:db8::1"), Parent: underlay,
		MAC: mac(34), MTU: 1430, Addr: prefix("fd00:5:0:22::/128"),
	})
	d.Peers = append(slices.Clone(d.Peers), peers...)
	return d
}

// dual34 is node34 with both families, of itself and of the peers.
func dual34(peers ...int) dataplane.Desired {
	want := node34()
	var six []dataplane.Peer
	for _, n := range peers {
		want.Peers, six = append(want.Peers, peer(n)), append(six, peer6(n))
	}
	return withIPv6(want, six...)
}

// six34 is node34 with IPv6 alone.
func six34(peers ...int) dataplane.Desired {
	want := dual34(peers...)
	four := func(p netip.Prefix) bool { return p.Addr().Is4() }
	want.Networks = slices.DeleteFunc(want.Networks, four)
	want.Bridge.Gateways = slices.DeleteFunc(want.Bridge.Gateways, four)
	want.Overlays = want.Overlays[1:]
	want.Peers = slices.DeleteFunc(want.Peers, func(p dataplane.Peer) bool { return four(p.Subnet) })
	return want
}

// overlayOf is the vxlan device of a family that is wanted, and its name; "" for
// none.
func overlayOf(want dataplane.Desired, six bool) (dataplane.Vxlan, string) {
	for _, v := range want.Overlays {
		if v.Local.Is6() == six {
			return v, v.DeviceName(want.Name)
		}
	}
	return dataplane.Vxlan{}, ""
}

func quietLog() *slog.Logger { return slog.New(slog.DiscardHandler) }

func testLog(t *testing.T) *slog.Logger {
	if os.Getenv("VERBOSE") == "" {
		return quietLog()
	}
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}
