package pathmtu

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/test/netnstest"
)

// hop is this node, and behind a router a peer. What the router hears is too
// large for its second cable it drops, with or without a word.
type hop struct{ near, router, far *netnstest.NS }

func newHop(t *testing.T) hop {
	t.Helper()
	if testing.Short() {
		t.Skip("needs root and network namespaces")
	}
	h := hop{netnstest.New(t), netnstest.New(t), netnstest.New(t)}
	h.sh(t, h.router, fmt.Sprintf(`
ip link add u0 type veth peer name eth0 netns %s
ip link add u1 type veth peer name eth0 netns %s
ip addr add 192.0.2.1/25 dev u0; ip addr add 192.0.2.129/25 dev u1
ip addr add 2001:db8:1::1/64 dev u0 nodad; ip addr add 2001:db8:2::1/64 dev u1 nodad
ip link set u0 up; ip link set u1 up; ip link set lo up
echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding`, h.near.Path(), h.far.Path()))
	for _, end := range []struct {
		ns        *netnstest.NS
		four, six string
	}{{h.near, "192.0.2.2/25", "2001:db8:1::2/64"}, {h.far, "192.0.2.130/25", "2001:db8:2::2/64"}} {
		via, via6 := netip.MustParsePrefix(end.four).Masked().Addr().Next(), netip.MustParsePrefix(end.six).Masked().Addr().Next()
		h.sh(t, end.ns, fmt.Sprintf("ip addr add %s dev eth0; ip addr add %s dev eth0 nodad; ip link set eth0 up; ip link set lo up; ip route add default via %s; ip route add default via %s", end.four, end.six, via, via6))
	}
	return h
}

func (h hop) sh(t *testing.T, ns *netnstest.NS, script string) {
	t.Helper()
	if err := ns.Do(func() error {
		out, err := exec.Command("sh", "-ec", script).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// mute keeps a router from saying that a packet is too large.
const mute = "iptables -A OUTPUT -p icmp --icmp-type fragmentation-needed -j DROP; ip6tables -A OUTPUT -p ipv6-icmp --icmpv6-type packet-too-big -j DROP"

// judge makes one check in the near namespace.
func (h hop) judge(t *testing.T, w Way) (v Verdict, passes int) {
	t.Helper()
	c := New(func() []Way { return []Way{w} }, func() {}, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err := h.near.Do(func() error { c.check(context.Background(), w, 1); return nil }); err != nil {
		t.Fatal(err)
	}
	k := c.seen[w]
	if holes := c.Holes(); (k.verdict == Holed) != (len(holes) == 1) || len(holes) == 1 && holes[0] != (Hole{w, k.passes}) {
		t.Errorf("holes %v, known %+v", holes, k)
	}
	return k.verdict, k.passes
}

// TestChecker: real packets of both families.
func TestChecker(t *testing.T) {
	h := newHop(t)
	at := netip.MustParseAddr
	for _, w := range []Way{{at("192.0.2.2"), at("192.0.2.130"), 1500}, {at("2001:db8:1::2"), at("2001:db8:2::2"), 1500}} {
		want := func(when string, verdict Verdict, passes int) {
			t.Helper()
			v, p := h.judge(t, w)
			if v != verdict || p > passes || p < passes-fine {
				t.Errorf("%s to %s: verdict %d, %d pass; want %d, %d", when, w.To, v, p, verdict, passes)
			}
		}
		want("a whole way", Well, 0)
		h.sh(t, h.router, "ip link set u1 mtu 1400")
		want("who sends is told", Well, 0)
		forget := "ip route flush cache; ip -6 route flush cache"
		h.sh(t, h.near, forget)
		h.sh(t, h.router, mute)
		want("nobody says a word", Holed, 1400)
		h.sh(t, h.far, "echo 1 >/proc/sys/net/ipv4/icmp_echo_ignore_all; echo 1 >/proc/sys/net/ipv6/icmp/echo_ignore_all")
		want("echo is not answered", Unknown, 0)
		h.sh(t, h.far, "echo 0 >/proc/sys/net/ipv4/icmp_echo_ignore_all; echo 0 >/proc/sys/net/ipv6/icmp/echo_ignore_all")
		h.sh(t, h.router, "ip link set u1 mtu 1500; iptables -F OUTPUT; ip6tables -F OUTPUT")
		want("whole again", Well, 0)
	}
	if v, _ := h.judge(t, Way{at("192.0.2.9"), at("192.0.2.130"), 1500}); v != Unknown {
		t.Errorf("from an address that is not here: verdict %d", v)
	}
	if v, _ := h.judge(t, Way{at("192.0.2.2"), at("198.51.100.1"), 1500}); v != Unknown {
		t.Errorf("to nowhere: verdict %d", v)
	}
}

// TestLastPeerGone: of a peer that is gone nothing is told, also if it was the
// only one.
func TestLastPeerGone(t *testing.T) {
	w := Way{netip.MustParseAddr("10.5.34.1"), netip.MustParseAddr("10.5.35.1"), 1450}
	var ways []Way
	c := New(func() []Way { return ways }, func() {}, slog.New(slog.DiscardHandler))
	c.seen[w], c.holed[w] = known{verdict: Holed, passes: 1300}, 1300
	if c.choose(time.Now()); len(c.Holes()) != 1 {
		t.Errorf("while nothing is known of ways: holes %v", c.Holes())
	}
	ways = []Way{}
	if c.choose(time.Now()); len(c.Holes()) != 0 {
		t.Errorf("without any way: holes %v", c.Holes())
	}
}

// TestRun: a hole is told once it is found and once it is filled, and what is
// no way any more is forgotten; while there are none at all nothing is.
func TestRun(t *testing.T) {
	h := newHop(t)
	w := Way{netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.130"), 1500}
	h.sh(t, h.router, "ip link set u1 mtu 1400; "+mute)
	ways := make(chan []Way, 1)
	ways <- []Way{w}
	told := make(chan struct{}, 10)
	c := New(func() []Way { now := <-ways; ways <- now; return now }, func() { told <- struct{}{} }, slog.New(slog.NewTextHandler(io.Discard, nil)))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.near.Do(func() error { return c.Run(ctx) }) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	hear := func(what string, holes int) {
		t.Helper()
		select {
		case <-told:
		case <-time.After(20 * time.Second):
			t.Fatalf("%s: not told", what)
		}
		if got := c.Holes(); len(got) != holes {
			t.Fatalf("%s: holes %v", what, got)
		}
	}
	hear("found", 1)
	<-ways
	ways <- nil
	select {
	case <-told:
		t.Errorf("no way at all: told of %v", c.Holes())
	case <-time.After(2 * idle):
	}
	<-ways
	ways <- []Way{{w.From, w.From, 1500}}
	hear("no way any more", 0)
}
