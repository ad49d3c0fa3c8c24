package ipam

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func tempDir(t *rapid.T) string {
	dir, err := os.MkdirTemp("", "ledger")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func openIn(t *rapid.T, path string, o Options) *Ledger {
	l, _, err := Open(path, o)
	if err != nil {
		t.Fatalf("open ledger: %v", err)
	}
	return l
}

// memoryDir is a tmpfs, as a ledger's directory is.
const memoryDir = "/dev/shm"

// crowded returns a ledger whose memory holds n addresses of subnet, without
// the n writes that they would take.
func crowded(t testing.TB, subnet string, n int) *Ledger {
	t.Helper()
	dir, err := os.MkdirTemp(memoryDir, "ledger")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	l := open(t, filepath.Join(dir, "ledger.json"), Options{})
	p, err := newPool(prefix(subnet), nil)
	if err != nil {
		t.Fatal(err)
	}
	st := newState()
	a := p.hosts.first
	for i := range n {
		r, err := newRecord(Allocation{
			Key: key(fmt.Sprintf("%064d", i)), Addresses: []netip.Prefix{netip.PrefixFrom(a, p.subnet.Bits())},
			Netns: fmt.Sprintf("/var/run/netns/cni-%036d", i), Host: fmt.Sprintf("ten%012d", i), Created: time.Unix(1, 0),
		})
		if err != nil {
			t.Fatal(err)
		}
		st.records, st.slots = append(st.records, r), append(st.slots, slot{addr: a})
		st.last[p.subnet], a = a, a.Next()
	}
	l.current.Store(st)
	return l
}

// checkFast holds each kind of allocation to a bound on one allocation, whatever the subnet looks like. The
// fastest of three runs is judged: the bound is on the work, not on the load
// of the machine.
func checkFast(t *testing.T, what string, f func(i int)) {
	t.Helper()
	const worst = slowdown * 50 * time.Millisecond
	var took []time.Duration
	for i := range 3 {
		start := time.Now()
		f(i)
		took = append(took, time.Since(start))
	}
	if slices.Min(took) > worst {
		t.Errorf("%s took %v, want less than %v", what, took, worst)
	}
}

func TestHugeSubnetWithLongExcludedStretch(t *testing.T) {
	const subnet = "fd00::/64"
	l := open(t, ledgerPath(t), Options{Exclude: prefixes("fd00::/88", "fd00::100:0:0/90", "fd00::8000:0:0:0/65")})
	var got netip.Addr
	checkFast(t, "allocation behind 2^40 excluded addresses", func(i int) { got = allocate(t, l, fmt.Sprint(i), anyOf(subnet)) })
	if got != addr("fd00::140:0:2") {
		t.Errorf("third address is %s, want fd00::140:0:2", got)
	}
	checkFast(t, "named address in the middle", func(i int) {
		allocate(t, l, fmt.Sprint("named", i), named(subnet, fmt.Sprintf("fd00::7fff:0:0:%d", i)))
	})
	checkFast(t, "allocation after a named one", func(i int) { got = allocate(t, l, fmt.Sprint("after", i), anyOf(subnet)) })
	if got != addr("fd00::140:0:5") {
		t.Errorf("sixth address is %s, want fd00::140:0:5", got)
	}
	if slots := len(l.current.Load().slots); slots != 9 {
		t.Errorf("%d slots are kept for 9 addresses", slots)
	}
}

func TestCrowdedSubnet(t *testing.T) {
	const subnet = "10.5.0.0/16"
	l := crowded(t, subnet, 60_000)
	checkFast(t, "allocation among 60000", func(i int) { allocate(t, l, fmt.Sprint(i), anyOf(subnet)) })
	st := l.current.Load()
	st.last[prefix(subnet)] = addr("10.5.0.1") // the next free one is at the far end of the run
	checkFast(t, "allocation past 60000", func(i int) { allocate(t, l, fmt.Sprint("far", i), anyOf(subnet)) })
	checkFast(t, "release among 60000", func(i int) { release(t, l, fmt.Sprint(i)) })
	if got := l.Usage(prefix(subnet)).Used; got != 60_003 {
		t.Errorf("used = %d, want 60003", got)
	}
}

func BenchmarkAllocateRelease(b *testing.B) {
	for _, n := range []int{0, 100, 60_000} {
		b.Run(fmt.Sprint(n, "-held"), func(b *testing.B) {
			l := crowded(b, "10.5.0.0/16", n)
			for b.Loop() {
				allocate(b, l, "a", anyOf("10.5.0.0/16"))
				release(b, l, "a")
			}
		})
	}
}
