package attach

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/test/netnstest"
)

func errorsIs(err, target error) bool {
	if target == nil {
		return err == nil
	}
	return errors.Is(err, target)
}

// bench is a host with a bridge and one pod.
type bench struct {
	hostNS, podNS *netnstest.NS
	host, pod     *netlink.Handle
	attacher      *Attacher
}

func newBench(t testing.TB) *bench {
	t.Helper()
	if testing.Short() {
		t.Skip("needs root and network namespaces")
	}
	b := &bench{hostNS: netnstest.New(t)}
	b.host = handleAt(t, b.hostNS)
	b.podNS, b.pod = newPod(t)
	b.attacher = New("tenure", netns.NsHandle(b.hostNS.FD()), slog.New(slog.NewTextHandler(io.Discard, nil)))
	must(t, b.host.LinkAdd(&netlink.Bridge{LinkAttrs: named("tenure0")}))
	must(t, b.host.LinkSetUp(&netlink.Bridge{LinkAttrs: named("tenure0")}))
	return b
}

func newPod(t testing.TB) (*netnstest.NS, *netlink.Handle) {
	t.Helper()
	pod := netnstest.New(t)
	return pod, handleAt(t, pod)
}

func handleAt(t testing.TB, at *netnstest.NS) *netlink.Handle {
	t.Helper()
	h, err := netlink.NewHandleAt(netns.NsHandle(at.FD()), unix.NETLINK_ROUTE)
	must(t, err)
	t.Cleanup(h.Close)
	return h
}

func named(name string) netlink.LinkAttrs {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	return attrs
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (b *bench) add(t testing.TB) Endpoint {
	t.Helper()
	e, err := b.attacher.Add(t.Context(), b.podNS.Path(), sample())
	if err != nil {
		t.Fatalf("add: %v", err)
	}
	return e
}

func (b *bench) check(t testing.TB) []string {
	t.Helper()
	ops, err := b.attacher.Check(t.Context(), b.podNS.Path(), sample())
	if err != nil {
		t.Fatalf("check: %v", err)
	}
	var texts []string
	for _, o := range ops {
		texts = append(texts, o.String())
	}
	return texts
}

// links lists what a namespace has beside its loopback.
func links(t testing.TB, h *netlink.Handle) []string {
	t.Helper()
	all, err := h.LinkList()
	must(t, err)
	var names []string
	for _, l := range all {
		if l.Attrs().Name != "lo" {
			names = append(names, l.Attrs().Name)
		}
	}
	slices.Sort(names)
	return names
}

func (b *bench) wantLinks(t testing.TB, host, pod []string) {
	t.Helper()
	if diff := cmp.Diff([][]string{host, pod}, [][]string{links(t, b.host), links(t, b.pod)}); diff != "" {
		t.Errorf("links on the host and in the pod (-want +got):\n%s", diff)
	}
}

func byName(t testing.TB, h *netlink.Handle, name string) netlink.Link {
	t.Helper()
	l, err := h.LinkByName(name)
	if err != nil {
		t.Fatalf("get link %s: %v", name, err)
	}
	return l
}

func TestAddCheckDel(t *testing.T) {
	b := newBench(t)
	w := sample()
	want := Endpoint{
		HostName: w.HostName(), HostMAC: hostMAC("tenure", w.HostName()), IfName: "eth0",
		MAC: [6]byte{0x0a, 0x58, 10, 5, 34, 7}, Sandbox: b.podNS.Path(),
	}
	if got := b.add(t); got != want {
		t.Errorf("endpoint %+v, want %+v", got, want)
	}
	b.wantLinks(t, []string{w.HostName(), "tenure0"}, []string{"eth0"})
	host, pod := byName(t, b.host, w.HostName()), byName(t, b.pod, "eth0")
	if got := host.Attrs().HardwareAddr; !slices.Equal(got, want.HostMAC[:]) {
		t.Errorf("host end has the MAC %s", got)
	}
	if got := pod.Attrs().HardwareAddr; !slices.Equal(got, want.MAC[:]) {
		t.Errorf("pod end has the MAC %s", got)
	}
	if info, err := b.host.LinkGetProtinfo(host); err != nil || !info.Hairpin {
		t.Errorf("hairpin is %v, %v", info.Hairpin, err)
	}
	if host.Attrs().MTU != 1450 || pod.Attrs().MTU != 1450 || host.Attrs().OperState != netlink.OperUp {
		t.Errorf("mtu %d and %d, host end %s", host.Attrs().MTU, pod.Attrs().MTU, host.Attrs().OperState)
	}
	addrs, err := b.pod.AddrList(pod, netlink.FAMILY_V6)
	must(t, err)
	for _, a := range addrs {
		if a.IP.Equal(net.ParseIP("fd00::7")) && a.Flags&unix.IFA_F_TENTATIVE != 0 {
			t.Error("the IPv6 address is not usable at once")
		}
	}
	if got := b.check(t); got != nil {
		t.Errorf("check right after add: %v", got)
	}
	for range 2 {
		must(t, b.attacher.Del(t.Context(), w.HostName()))
		b.wantLinks(t, []string{"tenure0"}, nil)
	}
}

// TestLateDeletion: a deletion whose caller has given up may still come. What
// an ADD of the same pod then makes, or finds, stays.
func TestLateDeletion(t *testing.T) {
	b := newBench(t)
	w := sample()
	for range 20 {
		b.add(t)
		ctx, cancel := context.WithCancel(t.Context())
		b.attacher.Step = func(string) { cancel() } // right before it is deleted
		if err := b.attacher.Del(ctx, w.HostName()); err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		b.attacher.Step = nil
		b.add(t)
		b.attacher.Wait()
		b.wantLinks(t, []string{w.HostName(), "tenure0"}, []string{"eth0"})
		must(t, b.attacher.Del(t.Context(), w.HostName()))
	}
	b.attacher.Wait()
	if len(b.attacher.overdue) > 0 {
		t.Errorf("still remembered: %v", b.attacher.overdue)
	}
}

func TestAddIsIdempotent(t *testing.T) {
	b := newBench(t)
	first := b.add(t)
	index := byName(t, b.host, first.HostName).Attrs().Index
	b.attacher.before = func(o Op) error { return fmt.Errorf("second add wants to %s", o) }
	if second := b.add(t); second != first {
		t.Errorf("second answer %+v, first %+v", second, first)
	}
	if got := byName(t, b.host, first.HostName).Attrs().Index; got != index {
		t.Errorf("host end was replaced: index %d, was %d", got, index)
	}
}

// TestDamage does one thing to a whole attachment at a time.
func TestDamage(t *testing.T) {
	hostName := sample().HostName()
	hostEnd := &netlink.GenericLink{LinkAttrs: named(hostName)}
	podEnd := &netlink.GenericLink{LinkAttrs: named("eth0")}
	tests := []struct {
		name   string
		damage func(*bench) error
		want   string // in Check's answer; empty: nothing promised is broken
	}{
		{"host end deleted", func(b *bench) error { return b.host.LinkDel(hostEnd) }, "create with peer eth0"},
		{"pod end renamed", func(b *bench) error {
			return errors.Join(b.pod.LinkSetDown(podEnd), b.pod.LinkSetName(&netlink.GenericLink{LinkAttrs: named("eth0")}, "eth9"))
		}, "delete the orphan"},
		{"host end down", func(b *bench) error { return b.host.LinkSetDown(hostEnd) }, "host " + hostName + ": set up"},
		{"host end off the bridge", func(b *bench) error { return b.host.LinkSetNoMaster(hostEnd) }, "join bridge tenure0"},
		{"host end on another bridge", func(b *bench) error {
			other := &netlink.Bridge{LinkAttrs: named("other0")}
			return errors.Join(b.host.LinkAdd(other), b.host.LinkSetMaster(hostEnd, other))
		}, "join bridge tenure0"},
		{"hairpin off", func(b *bench) error { return b.host.LinkSetHairpin(hostEnd, false) }, "set hairpin on"},
		{"host mtu", func(b *bench) error { return b.host.LinkSetMTU(hostEnd, 1400) }, "set mtu 1450, it is 1400"},
		{"pod mtu", func(b *bench) error { return b.pod.LinkSetMTU(podEnd, 1400) }, "set mtu 1450, it is 1400"},
		{"pod mac", func(b *bench) error {
			return b.pod.LinkSetHardwareAddr(podEnd, net.HardwareAddr{2, 0, 0, 0, 0, 9})
		}, "set address 0a:58:0a:05:22:07, it is 02:00:00:00:00:09"},
		{"pod end down", func(b *bench) error { return b.pod.LinkSetDown(podEnd) }, "pod eth0: set up"},
		{"pod address", func(b *bench) error {
			return b.pod.AddrDel(podEnd, &netlink.Addr{IPNet: ipNet(prefix("10.5.34.7/24"))})
		}, "add address 10.5.34.7/24"},
		{"pod IPv6 address", func(b *bench) error {
			return b.pod.AddrDel(podEnd, &netlink.Addr{IPNet: ipNet(prefix("fd00::7/64"))})
		}, "add address fd00::7/64"},
		{"default route", func(b *bench) error {
			return b.pod.RouteDel(&netlink.Route{Dst: ipNet(prefix("0.0.0.0/0")), Gw: net.IPv4(10, 5, 34, 1)})
		}, "add default route via 10.5.34.1"},
		{"IPv6 default route", func(b *bench) error {
			return b.pod.RouteDel(&netlink.Route{Dst: ipNet(prefix("::/0")), Gw: net.ParseIP("fd00::1")})
		}, "add default route via fd00::1"},
		{"host mac", func(b *bench) error {
			return b.host.LinkSetHardwareAddr(hostEnd, net.HardwareAddr{2, 0, 0, 0, 0, 9})
		}, ""},
		{"alias", func(b *bench) error { return b.host.LinkSetAlias(hostEnd, "uplink") }, ""},
		{"address added by the pod", func(b *bench) error {
			return b.pod.AddrAdd(podEnd, &netlink.Addr{IPNet: ipNet(prefix("192.0.2.9/32"))})
		}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			first := b.add(t)
			must(t, tt.damage(b))
			got := strings.Join(b.check(t), "\n")
			if tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
				t.Errorf("check says %q, want %q", got, tt.want)
			}
			if again := b.add(t); again != first {
				t.Errorf("add after the damage answers %+v, before %+v", again, first)
			}
			if got := b.check(t); got != nil {
				t.Errorf("check after the repair: %v", got)
			}
			found, err := b.attacher.List(t.Context())
			if err != nil || len(found) != 1 {
				t.Errorf("list after the repair: %v, %v", found, err)
			}
		})
	}
}

// TestUndo fails each step of an Add: nothing is left, and the next one works.
func TestUndo(t *testing.T) {
	b := newBench(t)
	boom := errors.New("boom")
	for step := range Plan(sample(), State{Bridge: 1}) {
		for what, fail := range map[string]func(context.CancelFunc) error{
			"error":  func(context.CancelFunc) error { return boom },
			"cancel": func(cancel context.CancelFunc) error { cancel(); return nil }, // seen at the next step
		} {
			ctx, cancel := context.WithCancel(t.Context())
			n := 0
			b.attacher.before = func(Op) error {
				if n++; n == step+1 {
					return fail(cancel)
				}
				return nil
			}
			_, err := b.attacher.Add(ctx, b.podNS.Path(), sample())
			lastStep := what == "cancel" && step == len(Plan(sample(), State{Bridge: 1}))-1
			if !lastStep && !errors.Is(err, boom) && !errors.Is(err, context.Canceled) {
				t.Errorf("%s at step %d: %v", what, step, err)
			}
			if lastStep {
				must(t, b.attacher.Del(t.Context(), sample().HostName()))
			}
			cancel()
			b.wantLinks(t, []string{"tenure0"}, nil)
		}
	}
	b.attacher.before = func(Op) error { return nil }
	b.add(t)
}

// TestUndoLeavesWhatWasThere fails a repair: the pair is older than the call.
func TestUndoLeavesWhatWasThere(t *testing.T) {
	b := newBench(t)
	e := b.add(t)
	must(t, b.host.LinkSetDown(byName(t, b.host, e.HostName)))
	boom := errors.New("boom")
	b.attacher.before = func(Op) error { return boom }
	if _, err := b.attacher.Add(t.Context(), b.podNS.Path(), sample()); !errors.Is(err, boom) {
		t.Fatalf("add: %v", err)
	}
	b.wantLinks(t, []string{e.HostName, "tenure0"}, []string{"eth0"})
}

func TestInterfaceExists(t *testing.T) {
	b := newBench(t)
	must(t, b.pod.LinkAdd(&netlink.Bridge{LinkAttrs: named("eth0")}))
	index := byName(t, b.pod, "eth0").Attrs().Index
	for range 2 {
		if _, err := b.attacher.Add(t.Context(), b.podNS.Path(), sample()); !errors.Is(err, ErrInterfaceExists) {
			t.Errorf("add: %v, want ErrInterfaceExists", err)
		}
	}
	b.wantLinks(t, []string{"tenure0"}, []string{"eth0"})
	if got := byName(t, b.pod, "eth0").Attrs().Index; got != index {
		t.Error("the pod's own interface was replaced")
	}
}

// TestInterfaceAppears is the race between reading and making: the kernel's
// EEXIST does not say which of the two names is taken.
func TestInterfaceAppears(t *testing.T) {
	for name, tt := range map[string]struct {
		side func(*bench) *netlink.Handle
		link string
		want error
	}{
		"in the pod":  {func(b *bench) *netlink.Handle { return b.pod }, "eth0", ErrInterfaceExists},
		"on the host": {func(b *bench) *netlink.Handle { return b.host }, sample().HostName(), ErrForeignHost},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.attacher.before = func(o Op) error {
				return tt.side(b).LinkAdd(&netlink.Bridge{LinkAttrs: named(tt.link)})
			}
			if _, err := b.attacher.Add(t.Context(), b.podNS.Path(), sample()); !errors.Is(err, tt.want) {
				t.Errorf("add: %v, want %v", err, tt.want)
			}
			byName(t, tt.side(b), tt.link) // still there
			if n := len(links(t, b.host)) + len(links(t, b.pod)); n != 2 {
				t.Errorf("host has %v, pod has %v", links(t, b.host), links(t, b.pod))
			}
		})
	}
}

// TestSameIndexesElsewhere builds a pair whose ends have the indexes of ours,
// but lie in other namespaces.
func TestSameIndexesElsewhere(t *testing.T) {
	b := newBench(t)
	e := b.add(t)
	hostEnd, podEnd := byName(t, b.host, e.HostName).Attrs(), byName(t, b.pod, "eth0").Attrs()
	otherNS, other := newPod(t)
	_, far := newPod(t)
	attrs := named("far0")
	attrs.Index = hostEnd.Index
	must(t, far.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(otherNS.FD())}))
	if got := byName(t, other, "eth0").Attrs(); got.Index != podEnd.Index || got.ParentIndex != hostEnd.Index {
		t.Fatalf("the other pair has the indexes %d and %d, want %d and %d", got.Index, got.ParentIndex, podEnd.Index, hostEnd.Index)
	}
	// The host knows both namespaces: neither lacks an id.
	must(t, b.host.LinkAdd(&netlink.Veth{LinkAttrs: named("veth0"), PeerName: "veth1", PeerNamespace: netlink.NsFd(otherNS.FD())}))
	byName(t, b.host, "veth0")
	if _, err := b.attacher.Add(t.Context(), otherNS.Path(), sample()); !errors.Is(err, ErrInterfaceExists) {
		t.Errorf("add in the other pod: %v, want ErrInterfaceExists", err)
	}
}

func TestForeignHostLink(t *testing.T) {
	b := newBench(t)
	name := sample().HostName()
	must(t, b.host.LinkAdd(&netlink.Veth{LinkAttrs: named(name), PeerName: "peer0"}))
	if _, err := b.attacher.Add(t.Context(), b.podNS.Path(), sample()); !errors.Is(err, ErrForeignHost) {
		t.Errorf("add: %v, want ErrForeignHost", err)
	}
	for _, name := range []string{name, "tenure0", "peer0"} {
		if err := b.attacher.Del(t.Context(), name); !errors.Is(err, ErrForeignHost) {
			t.Errorf("del of %s: %v, want ErrForeignHost", name, err)
		}
	}
	b.wantLinks(t, []string{"peer0", name, "tenure0"}, nil)
}

// TestOrphans are host ends of ours whose pod is another one by now.
func TestOrphans(t *testing.T) {
	for name, spoil := range map[string]func(*bench, netlink.Link) error{
		"whole": func(*bench, netlink.Link) error { return nil },
		// As a daemon leaves it that is killed between two requests.
		"half made": func(b *bench, l netlink.Link) error { return b.host.LinkSetAlias(l, "") },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			e := b.add(t)
			must(t, spoil(b, byName(t, b.host, e.HostName)))
			pod2, h2 := newPod(t)
			if _, err := b.attacher.Add(t.Context(), pod2.Path(), sample()); err != nil {
				t.Fatalf("add in the next pod: %v", err)
			}
			b.wantLinks(t, []string{e.HostName, "tenure0"}, nil)
			byName(t, h2, "eth0")
			must(t, spoil(b, byName(t, b.host, e.HostName)))
			must(t, b.attacher.Del(t.Context(), e.HostName))
			b.wantLinks(t, []string{"tenure0"}, nil)
		})
	}
}

func TestNamespaceErrors(t *testing.T) {
	b := newBench(t)
	dir := t.TempDir()
	file, fifo := filepath.Join(dir, "file"), filepath.Join(dir, "fifo")
	must(t, os.WriteFile(file, []byte("x"), 0o600))
	must(t, unix.Mkfifo(fifo, 0o600))
	for what, path := range map[string]string{
		"no path": "", "missing": filepath.Join(dir, "missing"), "a file": file, "a directory": dir, "a pipe": fifo,
		"a mount namespace": "/proc/self/ns/mnt", "the host's own": b.hostNS.Path(),
	} {
		if _, err := b.attacher.Add(t.Context(), path, sample()); !errors.Is(err, ErrNamespace) {
			t.Errorf("add with %s: %v, want ErrNamespace", what, err)
		}
		if _, err := b.attacher.Check(t.Context(), path, sample()); !errors.Is(err, ErrNamespace) {
			t.Errorf("check with %s: %v, want ErrNamespace", what, err)
		}
	}
	own := New("tenure", netns.None(), slog.New(slog.NewTextHandler(io.Discard, nil)))
	if _, err := own.Add(t.Context(), "/proc/thread-self/ns/net", sample()); !errors.Is(err, ErrNamespace) {
		t.Errorf("add in the process's own namespace: %v, want ErrNamespace", err)
	}
	b.wantLinks(t, []string{"tenure0"}, nil)
}

func TestNoBridge(t *testing.T) {
	b := newBench(t)
	w := sample()
	must(t, b.host.LinkAdd(&netlink.Veth{LinkAttrs: named("veth0"), PeerName: "veth1"}))
	for _, w.Bridge = range []string{"missing0", "veth0"} {
		if _, err := b.attacher.Add(t.Context(), b.podNS.Path(), w); !errors.Is(err, ErrNoBridge) {
			t.Errorf("add to %s: %v, want ErrNoBridge", w.Bridge, err)
		}
	}
	b.wantLinks(t, []string{"tenure0", "veth0", "veth1"}, nil)
}

func TestInvalidWant(t *testing.T) {
	b := newBench(t)
	w := sample()
	w.Owner.ContainerID = strings.Repeat("a", 300)
	if _, err := b.attacher.Add(t.Context(), b.podNS.Path(), w); err == nil {
		t.Error("a huge container ID was accepted")
	}
	w = sample()
	w.Owner.Instance = "other"
	if _, err := b.attacher.Add(t.Context(), b.podNS.Path(), w); err == nil {
		t.Error("another instance's owner was accepted")
	}
	b.wantLinks(t, []string{"tenure0"}, nil)
}

// TestSecondInterface gives one pod two interfaces; the first keeps the
// traffic, each is removed alone.
func TestSecondInterface(t *testing.T) {
	b := newBench(t)
	e := b.add(t)
	w := sample()
	w.Owner.IfName = "eth1"
	w.Addrs, w.Gateways = []netip.Prefix{prefix("10.5.34.8/24")}, w.Gateways[:1]
	e1, err := b.attacher.Add(t.Context(), b.podNS.Path(), w)
	must(t, err)
	if ops, err := b.attacher.Check(t.Context(), b.podNS.Path(), w); err != nil || len(ops) != 0 {
		t.Errorf("check of eth1: %v, %v", ops, err)
	}
	routes, err := b.pod.RouteGet(net.IPv4(192, 0, 2, 1))
	must(t, err)
	if routes[0].LinkIndex != byName(t, b.pod, "eth0").Attrs().Index {
		t.Error("eth1 took the default route from eth0")
	}
	must(t, b.attacher.Del(t.Context(), e1.HostName))
	b.wantLinks(t, []string{e.HostName, "tenure0"}, []string{"eth0"})
	if got := b.check(t); got != nil {
		t.Errorf("check of eth0: %v", got)
	}
}

func TestIPv6TurnedOffInThePod(t *testing.T) {
	b := newBench(t)
	must(t, b.podNS.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0)
	}))
	b.add(t)
	if got := b.check(t); got != nil {
		t.Errorf("check: %v", got)
	}
}

// TestNoShorterWays: what a pod would be told of a stranded one beside it would
// outlive that one.
func TestNoShorterWays(t *testing.T) {
	b := newBench(t)
	b.add(t)
	must(t, b.podNS.Do(func() error {
		v, err := os.ReadFile("/proc/sys/net/ipv6/conf/eth0/accept_redirects")
		if err == nil && strings.TrimSpace(string(v)) != "0" {
			t.Errorf("accept_redirects is %s", v)
		}
		return err
	}))
}

func TestList(t *testing.T) {
	b := newBench(t)
	e := b.add(t)
	other := New("other", netns.NsHandle(b.hostNS.FD()), b.attacher.log)
	w := sample()
	w.Owner.Instance, w.Owner.IfName = "other", "eth1"
	w.Addrs, w.Gateways = w.Addrs[:1], w.Gateways[:1]
	eOther, err := other.Add(t.Context(), b.podNS.Path(), w)
	must(t, err)
	got, err := b.attacher.List(t.Context())
	must(t, err)
	want := []Found{{e.HostName, sample().Owner, sample().Addrs}}
	if diff := cmp.Diff(want, got, compareValues); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
	if err := b.attacher.Del(t.Context(), eOther.HostName); !errors.Is(err, ErrForeignHost) {
		t.Errorf("del of another instance's veth: %v, want ErrForeignHost", err)
	}
}

func TestCanceledContext(t *testing.T) {
	b := newBench(t)
	e := b.add(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.attacher.Del(ctx, e.HostName); !errors.Is(err, context.Canceled) {
		t.Errorf("del: %v", err)
	}
	if _, err := b.attacher.List(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("list: %v", err)
	}
	if _, err := b.attacher.Check(ctx, b.podNS.Path(), sample()); !errors.Is(err, context.Canceled) {
		t.Errorf("check: %v", err)
	}
}

func BenchmarkAttach(b *testing.B) {
	bed := newBench(b)
	w := sample()
	w.Addrs, w.Gateways = w.Addrs[:1], w.Gateways[:1]
	b.Run("add", func(b *testing.B) {
		for b.Loop() {
			_, err := bed.attacher.Add(b.Context(), bed.podNS.Path(), w)
			must(b, err)
			b.StopTimer()
			must(b, bed.attacher.Del(b.Context(), w.HostName()))
			b.StartTimer()
		}
	})
	_, err := bed.attacher.Add(b.Context(), bed.podNS.Path(), w)
	must(b, err)
	b.Run("add-again", func(b *testing.B) {
		for b.Loop() {
			_, err := bed.attacher.Add(b.Context(), bed.podNS.Path(), w)
			must(b, err)
		}
	})
	b.Run("check", func(b *testing.B) {
		for b.Loop() {
			_, err := bed.attacher.Check(b.Context(), bed.podNS.Path(), w)
			must(b, err)
		}
	})
	b.Run("del-absent", func(b *testing.B) {
		for b.Loop() {
			must(b, bed.attacher.Del(b.Context(), "ten000000000000"))
		}
	})
}
