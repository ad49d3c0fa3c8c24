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
