package ipam

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The tests of this file are rows of the list that test/field tells of, whose
// experiment lies in this package alone.

// dual asks for an address of each family.
func dual(v4, v6 string) []Ask { return []Ask{{Subnet: prefix(v4)}, {Subnet: prefix(v6)}} }

// TestD11 is calico #5044: the collector took the second family's address of a
// pod for leaked and released all that the pod held. Right is: a record stands
// and falls as a whole. What speaks of one family only, be it a look into the
// kernel, changes nothing; a release frees both addresses.
func TestD11(t *testing.T) {
	const v4, v6 = "10.5.34.0/24", "fd00::/64"
	path := ledgerPath(t)
	l := open(t, path, Options{Cooldown: time.Hour})
	a, _, err := l.Allocate(key("a"), dual(v4, v6), nil)
	mustDo(t, err)
	if diff := cmp.Diff(prefixes("10.5.34.2/24", "fd00::2/64"), a.Addresses, compareAddrs); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
	if !a.In(prefix(v6)) || a.In(prefix("fd00:1::/64")) {
		t.Error("In does not follow the addresses")
	}
	for _, seen := range a.Addresses { // what a look at one family reports
		if err := l.Adopt(Allocation{Key: a.Key, Addresses: []netip.Prefix{seen}}); !errors.Is(err, ErrUnavailable) {
			t.Errorf("half a record, %s, was adopted over the whole: %v", seen, err)
		}
		if err := l.Adopt(Allocation{Key: key("b"), Addresses: []netip.Prefix{seen}}); !errors.Is(err, ErrUnavailable) {
			t.Errorf("%s was adopted for another: %v", seen, err)
		}
	}
	wantUsage(t, "with a pod", l, Usage{Used: 1}, v4, v6)
	l = open(t, path, Options{Cooldown: time.Hour})
	wantUsage(t, "after a restart", l, Usage{Used: 1}, v4, v6)
	release(t, l, "a")
	wantUsage(t, "after the release", l, Usage{Cooling: 1}, v4, v6)
}

func wantUsage(t *testing.T, when string, l *Ledger, want Usage, subnets ...string) {
	t.Helper()
	for _, s := range subnets {
		if got := l.Usage(prefix(s)); got.Used != want.Used || got.Cooling != want.Cooling {
			t.Errorf("%s: of %s %d are used and %d cooling, want %d and %d", when, s, got.Used, got.Cooling, want.Used, want.Cooling)
		}
	}
}

// TestD12 is calico/cni-plugin #908 and spiderpool #1045: the second family, or
// a later step, fails, and the first address leaks, or one that was there
// before is freed too. Right is: one error, everything as before, in memory and
// in the file, whichever family is full and wherever the round robin stood; and
// what a key holds from before is answered again and kept. Failures of later
// steps are test/field's.
func TestD12(t *testing.T) {
	const large, small = "10.5.34.0/24", "fd00::/126" // the second has two addresses
	for name, asks := range map[string][]Ask{"the second is full": dual(large, small), "the first is full": dual(small, large)} {
		t.Run(name, func(t *testing.T) {
			path := ledgerPath(t)
			l := open(t, path, Options{Cooldown: time.Hour})
			held, _, err := l.Allocate(key("held"), asks, nil)
			mustDo(t, err)
			allocate(t, l, "filler", anyOf(small))
			before, err := os.ReadFile(path)
			mustDo(t, err)
			for _, id := range []string{"new", "new", "another"} {
				if _, _, err := l.Allocate(key(id), asks, nil); !errors.Is(err, ErrFull) {
					t.Fatalf("%s: %v, want ErrFull", id, err)
				}
			}
			again, existed, err := l.Allocate(key("held"), asks, nil)
			if err != nil || !existed || !cmp.Equal(held, again, compareAddrs) {
				t.Errorf("the one from before is answered %v, %v; want %v", again, err, held)
			}
			wantUsage(t, "after the failures", l, Usage{Used: 1}, large)
			wantUsage(t, "after the failures", l, Usage{Used: 2}, small)
			if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
				t.Errorf("the file changed (%v):\n%s\nto\n%s", err, before, after)
			}
			if got := allocate(t, l, "next", anyOf(large)); got != addr("10.5.34.3") {
				t.Errorf("the next address is %s: a failure moved the round robin", got)
			}
		})
	}
}

// TestD16 is cni #298 and moby #42626: the last address of a /30 is never
// given, a /31 unusable, gateway or broadcast address given. Right is: a subnet
// is handed out to its end, all but base, gateway and, in IPv4, broadcast; the
// one that is freed in the middle is found, and the round robin goes round. Of
// a subnet without a pod address nothing is given; conf refuses such a length.
func TestD16(t *testing.T) {
	for subnet, want := range map[string]int{"10.5.34.0/24": 253, "10.5.34.0/29": 5, "10.5.34.0/30": 1, "fd00::/126": 2} {
		t.Run(subnet, func(t *testing.T) { wholeSubnet(t, subnet, want) })
	}
	l := open(t, ledgerPath(t), Options{})
	for _, subnet := range append(prefixes("10.5.34.0/31", "10.5.34.1/32", "fd00::/127", "fd00::1/128"), netip.Prefix{}) {
		if _, _, err := l.Allocate(key("a"), []Ask{{Subnet: subnet}}, nil); !errors.Is(err, ErrTooSmall) {
			t.Errorf("allocate in %s: %v, want ErrTooSmall", subnet, err)
		}
		if got := l.Usage(subnet); got != (Usage{}) {
			t.Errorf("usage of %s: %+v, want nothing", subnet, got)
		}
	}
	if got := l.List(); len(got) != 0 {
		t.Errorf("refused allocations are on record: %v", got)
	}
}

func wholeSubnet(t *testing.T, subnet string, want int) {
	t.Helper()
	l := open(t, ledgerPath(t), Options{})
	first := prefix(subnet).Addr().Next().Next()
	for i, next := 0, first; i < want; i, next = i+1, next.Next() {
		if got := allocate(t, l, fmt.Sprint(i), anyOf(subnet)); got != next {
			t.Fatalf("allocation %d is %s, want %s", i, got, next)
		}
	}
	if _, _, err := l.Allocate(key("more"), anyOf(subnet), nil); !errors.Is(err, ErrFull) {
		t.Fatalf("allocation from a full subnet: %v, want ErrFull", err)
	}
	for _, i := range []int{want - 1, want / 2, 0} { // found wherever the round robin stands
		freed, _ := l.Release(key(fmt.Sprint(i)))
		if got := allocate(t, l, fmt.Sprint(i), anyOf(subnet)); got != firstOf(freed) {
			t.Errorf("the one free address is %s, got %s", firstOf(freed), got)
		}
	}
	if got := l.Usage(prefix(subnet)); got != (Usage{Total: uint64(want), Used: uint64(want)}) {
		t.Errorf("usage of the full subnet: %+v", got)
	}
	for i := range want {
		release(t, l, fmt.Sprint(i))
	}
	for i, next := 0, first.Next(); i < want; i, next = i+1, next.Next() { // the last one given was the first
		if i == want-1 {
			next = first
		}
		if got := allocate(t, l, fmt.Sprint(i), anyOf(subnet)); got != next {
			t.Fatalf("on the second round allocation %d is %s, want %s", i, got, next)
		}
	}
}

// TestD20 is nvidia-k8s-ipam #266 and libcalico #72: the allocator walks a huge
// range, or a long excluded stretch, address by address, and ADD hangs. Right
// is: every allocation takes less than 50 ms, and memory is that of the
// addresses in use.
func TestD20(t *testing.T) {
	t.Run("a /64 with a long excluded stretch", hugeSubnet)
	t.Run("60000 used in a /16", crowdedSubnet)
	t.Run("memory", func(t *testing.T) {
		var sizes []int64
		for _, subnet := range []string{"10.5.0.0/16", "fd00::/64"} {
			before := heap()
			l := crowded(t, subnet, 1000)
			allocate(t, l, "more", anyOf(subnet))
			sizes = append(sizes, heap()-before)
			runtime.KeepAlive(l)
		}
		if sizes[1] > 2*sizes[0]+1<<20 {
			t.Errorf("1001 addresses take %d bytes in a /16, and %d in a /64", sizes[0], sizes[1])
		}
	})
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func hugeSubnet(t *testing.T) {
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

func crowdedSubnet(t *testing.T) {
	const subnet = "10.5.0.0/16"
	l := crowded(t, subnet, 60_000)
	checkFast(t, "allocation among 60000", func(i int) { allocate(t, l, fmt.Sprint(i), anyOf(subnet)) })
	st := l.current.Load()
	st.last[prefix(subnet)] = addr("10.5.0.1") // the next free one is at the far end of the run
	checkFast(t, "allocation past 60000", func(i int) { allocate(t, l, fmt.Sprint("far", i), anyOf(subnet)) })
	checkFast(t, "named address among 60000", func(i int) {
		allocate(t, l, fmt.Sprint("named", i), named(subnet, fmt.Sprintf("10.5.250.%d", i)))
	})
	checkFast(t, "release among 60000", func(i int) { release(t, l, fmt.Sprint(i)) })
	if got := l.Usage(prefix(subnet)).Used; got != 60_006 {
		t.Errorf("used = %d, want 60006", got)
	}
}
