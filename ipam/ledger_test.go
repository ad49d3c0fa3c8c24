package ipam

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

var compareAddrs = cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })

// clock is a wall clock that stands until it is moved.
type clock struct{ now time.Time }

func newClock() *clock               { return &clock{time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)} }
func (c *clock) read() time.Time     { return c.now }
func (c *clock) add(d time.Duration) { c.now = c.now.Add(d) }

func key(id string) Key { return Key{Network: "tenure", ContainerID: id, IfName: "eth0"} }

func anyOf(subnet string) []Ask          { return []Ask{{Subnet: prefix(subnet)}} }
func named(subnet, want string) []Ask    { return []Ask{{Subnet: prefix(subnet), Want: addr(want)}} }
func firstOf(a Allocation) netip.Addr    { return a.Addresses[0].Addr() }
func quiet() *slog.Logger                { return slog.New(slog.NewTextHandler(io.Discard, nil)) }
func logTo(b *bytes.Buffer) *slog.Logger { return slog.New(slog.NewTextHandler(b, nil)) }

func open(t testing.TB, path string, o Options) *Ledger {
	t.Helper()
	l, _ := openAs(t, path, o)
	return l
}

func openAs(t testing.TB, path string, o Options) (*Ledger, Origin) {
	t.Helper()
	if o.Boot == "" {
		o.Boot = "boot-1"
	}
	if o.Log == nil {
		o.Log = quiet()
	}
	l, origin, err := Open(path, o)
	if err != nil {
		t.Fatalf("open ledger: %v", err)
	}
	return l, origin
}

func ledgerPath(t testing.TB) string { return filepath.Join(t.TempDir(), "ledger.json") }

func allocate(t testing.TB, l *Ledger, id string, asks []Ask) netip.Addr {
	t.Helper()
	a, existed, err := l.Allocate(key(id), asks, nil)
	if err != nil || existed {
		t.Fatalf("allocate for %s: existed %v, error %v", id, existed, err)
	}
	return firstOf(a)
}

func release(t testing.TB, l *Ledger, id string) {
	t.Helper()
	if _, existed := l.Release(key(id)); !existed {
		t.Fatalf("release of %s: no record", id)
	}
}

func TestNamedAddress(t *testing.T) {
	const subnet = "10.5.34.0/24"
	clk := newClock()
	var log bytes.Buffer
	l := open(t, ledgerPath(t), Options{Exclude: prefixes("10.5.34.64/26"), Cooldown: time.Minute, Now: clk.read, Log: logTo(&log)})
	if got := allocate(t, l, "named", named(subnet, "10.5.34.200")); got != addr("10.5.34.200") {
		t.Fatalf("asked for 10.5.34.200, got %s", got)
	}
	if got := allocate(t, l, "any", anyOf(subnet)); got != addr("10.5.34.2") {
		t.Errorf("a named address moved the round robin: next is %s", got)
	}
	for want, why := range map[string]string{
		"10.5.34.0": "base", "10.5.34.1": "gateway", "10.5.34.255": "broadcast", "10.5.35.7": "outside",
		"fd00::7": "outside", "10.5.34.70": "excluded", "10.5.34.200": "held by tenure/named/eth0",
	} {
		_, _, err := l.Allocate(key("refused"), named(subnet, want), nil)
		if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), why) {
			t.Errorf("asked for %s: %v, want ErrUnavailable that says %q", want, err, why)
		}
	}
	if got := allocate(t, l, "mapped", named(subnet, "::ffff:10.5.34.9")); got != addr("10.5.34.9") {
		t.Errorf("asked for an IPv4-mapped address, got %s", got)
	}
	release(t, l, "named")
	if got := allocate(t, l, "later", named(subnet, "10.5.34.200")); got != addr("10.5.34.200") {
		t.Errorf("asked for a cooling address, got %s", got)
	}
	if !strings.Contains(log.String(), "address=10.5.34.200") {
		t.Errorf("giving a cooling address was not logged: %q", log.String())
	}
}

func TestAllocateIsIdempotentPerInterface(t *testing.T) {
	l := open(t, ledgerPath(t), Options{})
	eth0 := Key{"tenure", "c1", "eth0"}
	eth1 := Key{"tenure", "c1", "eth1"}
	fill := func(a *Allocation) {
		*a = Allocation{Netns: "/proc/7/ns/net", Host: "tenabc", MAC: "02:00:00:00:00:07", IPAM: true}
	}
	first, existed, err := l.Allocate(eth0, anyOf("10.5.34.0/24"), fill)
	if err != nil || existed {
		t.Fatalf("first: existed %v, %v", existed, err)
	}
	want := Allocation{
		Key: eth0, Addresses: prefixes("10.5.34.2/24"), Netns: "/proc/7/ns/net", Host: "tenabc",
		MAC: "02:00:00:00:00:07", IPAM: true, Created: first.Created,
	}
	if diff := cmp.Diff(want, first, compareAddrs); diff != "" || first.Created.IsZero() {
		t.Errorf("first allocation, created %v (-want +got):\n%s", first.Created, diff)
	}
	again, existed, err := l.Allocate(eth0, named("10.9.0.0/24", "10.9.0.7"), nil)
	if err != nil || !existed {
		t.Fatalf("again: existed %v, %v", existed, err)
	}
	if diff := cmp.Diff(first, again, compareAddrs); diff != "" {
		t.Errorf("the record changed (-first +again):\n%s", diff)
	}
	if _, existed, err = l.Allocate(eth1, anyOf("10.5.34.0/24"), nil); err != nil || existed {
		t.Fatalf("eth1: existed %v, %v", existed, err)
	}
	l.Release(eth1)
	if _, held := l.Get(eth0); !held {
		t.Error("the release of eth1 freed eth0")
	}
	l.Release(eth0)
	if _, existed := l.Release(eth0); existed {
		t.Error("the second release found a record")
	}
	if got := l.List(); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}

// TestCallersCannotReachIn changes what the ledger returned.
func TestCallersCannotReachIn(t *testing.T) {
	l := open(t, ledgerPath(t), Options{})
	a, _, err := l.Allocate(key("a"), anyOf("10.5.34.0/24"), nil)
	if err != nil {
		t.Fatal(err)
	}
	a.Addresses[0] = prefix("10.5.34.99/24")
	l.List()[0].Addresses[0] = prefix("10.5.34.99/24")
	got, _ := l.Get(key("a"))
	if firstOf(got) != addr("10.5.34.2") {
		t.Errorf("the record now says %s", firstOf(got))
	}
}

func TestCooldown(t *testing.T) {
	const subnet = "10.5.34.0/29" // five addresses, .2 to .6
	clk, path := newClock(), ledgerPath(t)
	var log bytes.Buffer
	o := Options{Cooldown: time.Minute, Now: clk.read, Log: logTo(&log)}
	l := open(t, path, o)
	for _, id := range []string{"2", "3", "4"} {
		allocate(t, l, id, anyOf(subnet))
	}
	for _, id := range []string{"3", "2", "4"} { // .3 is the oldest
		clk.add(time.Second)
		release(t, l, id)
	}
	if got := l.Usage(prefix(subnet)); got != (Usage{Total: 5, Cooling: 3}) {
		t.Errorf("usage: %+v", got)
	}
	l = open(t, path, o) // a restart within the cool-down
	for i, want := range []string{"10.5.34.5", "10.5.34.6"} {
		if got := allocate(t, l, fmt.Sprint("free", i), anyOf(subnet)); got != addr(want) {
			t.Errorf("got %s, want %s, which is not cooling", got, want)
		}
	}
	if log.Len() != 0 {
		t.Errorf("logged without need: %s", log.String())
	}
	if got := allocate(t, l, "warm", anyOf(subnet)); got != addr("10.5.34.3") {
		t.Errorf("got %s, want the oldest cooling one, 10.5.34.3", got)
	}
	if !strings.Contains(log.String(), "address=10.5.34.3") {
		t.Errorf("the early use is not logged: %q", log.String())
	}
	clk.add(time.Minute)
	if got := l.Usage(prefix(subnet)); got != (Usage{Total: 5, Used: 3}) {
		t.Errorf("usage after the cool-down: %+v", got)
	}
	log.Reset()
	if got := allocate(t, l, "cold", anyOf(subnet)); got != addr("10.5.34.4") || log.Len() != 0 {
		t.Errorf("got %s with log %q, want 10.5.34.4 and no log", got, log.String())
	}
}

// TestEarlyUseLog: where pods come and go faster than addresses cool, the log
// gets a line a minute, not one for each of them.
func TestEarlyUseLog(t *testing.T) {
	const subnet = "10.5.34.0/30" // one address
	clk := newClock()
	var log bytes.Buffer
	l := open(t, ledgerPath(t), Options{Cooldown: time.Hour, Now: clk.read, Log: logTo(&log)})
	allocate(t, l, "first", anyOf(subnet))
	release(t, l, "first")
	for i, c := range []struct {
		later  time.Duration
		logged string // "" is nothing
	}{
		{0, "repeated=0"}, {time.Second, ""}, {time.Second, ""}, {time.Minute, "repeated=2"}, {time.Second, ""},
		{-time.Hour, "repeated=1"}, {time.Minute, "repeated=0"},
	} {
		log.Reset()
		clk.add(c.later)
		id := fmt.Sprint("pod", i)
		allocate(t, l, id, anyOf(subnet))
		release(t, l, id)
		if got := log.String(); (c.logged == "") != (got == "") || !strings.Contains(got, c.logged) {
			t.Errorf("early use %d: logged %q, want %q", i, got, c.logged)
		}
	}
}

// TestClockSetBack must not leave an address cooling for the hours that the
// clock was wrong.
func TestClockSetBack(t *testing.T) {
	clk := newClock()
	l := open(t, ledgerPath(t), Options{Cooldown: time.Minute, Now: clk.read})
	allocate(t, l, "a", anyOf("10.5.34.0/30"))
	clk.add(24 * time.Hour)
	release(t, l, "a")
	clk.add(-24 * time.Hour)
	if got := l.Usage(prefix("10.5.34.0/30")).Cooling; got != 1 {
		t.Fatalf("cooling = %d, want 1", got)
	}
	allocate(t, l, "elsewhere", anyOf("10.6.0.0/24"))
	clk.add(time.Minute)
	if got := l.Usage(prefix("10.5.34.0/30")).Cooling; got != 0 {
		t.Errorf("cooling = %d a minute later, want 0", got)
	}
}

func TestAdopt(t *testing.T) {
	path := ledgerPath(t)
	l := open(t, path, Options{Cooldown: time.Minute, Exclude: prefixes("10.5.34.16/28")})
	found := Allocation{Key: key("a"), Addresses: prefixes("10.5.34.17/24"), Host: "tenabc"}
	for range 2 {
		if err := l.Adopt(found); err != nil {
			t.Fatalf("adopt: %v", err)
		}
	}
	for what, a := range map[string]Allocation{
		"held address":  {Key: key("b"), Addresses: prefixes("10.5.34.17/24")},
		"taken key":     {Key: key("a"), Addresses: prefixes("10.5.34.18/24")},
		"address twice": {Key: key("c"), Addresses: prefixes("10.5.34.19/24", "10.5.34.19/24")},
	} {
		if err := l.Adopt(a); !errors.Is(err, ErrUnavailable) {
			t.Errorf("adopt with %s: %v, want ErrUnavailable", what, err)
		}
	}
	if err := l.Adopt(Allocation{Key: key("d")}); err == nil {
		t.Error("adopted a record without an address")
	}
	l, origin := openAs(t, path, Options{})
	if got := l.List(); origin != Loaded || len(got) != 1 || got[0].Host != "tenabc" || got[0].Created.IsZero() {
		t.Errorf("after a restart (%s): %+v", origin, got)
	}
	if got := allocate(t, l, "next", anyOf("10.5.34.0/24")); got != addr("10.5.34.2") {
		t.Errorf("next address is %s", got)
	}
}

// TestAdoptInOneWrite has a daemon killed while it makes its ledger again: the
// next one must not find a file with some of what was found.
func TestAdoptInOneWrite(t *testing.T) {
	path := ledgerPath(t)
	writes := 0
	l := open(t, path, Options{Step: func(where string) {
		if where == "before the ledger is replaced" {
			writes++
		}
	}})
	err := l.Adopt(Allocation{Key: key("a"), Addresses: prefixes("10.5.34.2/24")},
		Allocation{Key: key("b"), Addresses: prefixes("10.5.34.2/24")},
		Allocation{Key: key("c"), Addresses: prefixes("10.5.34.3/24")})
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), key("b").String()) {
		t.Errorf("adopt: %v, want ErrUnavailable for b", err)
	}
	l, _ = openAs(t, path, Options{})
	if got := l.List(); writes != 1 || len(got) != 2 || got[0].Key != key("a") || got[1].Key != key("c") {
		t.Errorf("%d writes, and after a restart %v; want one, with a and c", writes, got)
	}
}

// TestAdoptedAmongExcluded has records where the pool would put none.
func TestAdoptedAmongExcluded(t *testing.T) {
	const subnet = "10.5.34.0/29" // .2 to .6
	l := open(t, ledgerPath(t), Options{Cooldown: time.Hour, Exclude: prefixes("10.5.34.3/32", "10.5.34.5/32")})
	mustDo(t, l.Adopt(Allocation{Key: key("a"), Addresses: prefixes("10.5.34.3/29")}))
	for i, want := range []string{"10.5.34.2", "10.5.34.4", "10.5.34.6"} {
		if got := allocate(t, l, fmt.Sprint(i), anyOf(subnet)); got != addr(want) {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	release(t, l, "a")
	if a, _, err := l.Allocate(key("more"), anyOf(subnet), nil); !errors.Is(err, ErrFull) {
		t.Errorf("an excluded address was given once it was released: %v, %v", a.Addresses, err)
	}
}

func TestOpenWithoutPriorRecord(t *testing.T) {
	path := ledgerPath(t)
	l, origin := openAs(t, path, Options{})
	if origin != Fresh {
		t.Fatalf("no file: origin %s", origin)
	}
	allocate(t, l, "a", anyOf("10.5.34.0/24"))
	if _, origin = openAs(t, path, Options{}); origin != Loaded {
		t.Errorf("same boot: origin %s", origin)
	}
	l, origin = openAs(t, path, Options{Boot: "boot-2"})
	if got := l.List(); origin != OldBoot || len(got) != 0 {
		t.Errorf("next boot: origin %s, records %v", origin, got)
	}
	if got := allocate(t, l, "b", anyOf("10.5.34.0/24")); got != addr("10.5.34.2") {
		t.Errorf("first address of the boot: %s", got)
	}
	if _, _, err := Open(path, Options{}); err == nil {
		t.Error("opened a ledger without a boot")
	}
	if _, _, err := Open(t.TempDir(), Options{Boot: "boot-1"}); err == nil {
		t.Error("opened a directory")
	}
}

func TestDamagedFile(t *testing.T) {
	path := ledgerPath(t)
	l := open(t, path, Options{Cooldown: time.Hour})
	allocate(t, l, "a", anyOf("10.5.34.0/24"))
	allocate(t, l, "b", anyOf("10.5.34.0/24"))
	release(t, l, "b")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string][]byte{
		"empty":         {},
		"half":          whole[:len(whole)/2],
		"garbage":       []byte("\xff\xfe not a ledger"),
		"zeros":         make([]byte, len(whole)),
		"null":          []byte("null"),
		"no boot":       []byte(`{"version":1}`),
		"no version":    []byte(`{"boot":"boot-1"}`),
		"twice":         append(bytes.Clone(whole), whole...),
		"bad address":   bytes.ReplaceAll(whole, []byte("10.5.34.2/24"), []byte("10.5.34.2/99")),
		"no address":    bytes.ReplaceAll(whole, []byte(`["10.5.34.2/24"]`), []byte(`[]`)),
		"held, cooling": bytes.ReplaceAll(whole, []byte("10.5.34.2/24"), []byte("10.5.34.3/24")),
	}
	for name, content := range tests {
		t.Run(name, func(t *testing.T) {
			path := ledgerPath(t)
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			clk := newClock()
			l, origin := openAs(t, path, Options{Log: logTo(&log), Now: clk.read})
			if origin != Damaged || len(l.List()) != 0 {
				t.Fatalf("origin %s, records %v", origin, l.List())
			}
			if n := strings.Count(log.String(), "level=WARN"); n != 1 {
				t.Errorf("%d warnings, want 1:\n%s", n, log.String())
			}
			aside := fmt.Sprintf("%s.damaged-%d", path, clk.now.UnixNano())
			if got, err := os.ReadFile(aside); err != nil || !bytes.Equal(got, content) {
				t.Errorf("the damaged file was not kept: %v", err)
			}
			allocate(t, l, "a", anyOf("10.5.34.0/24"))
			if _, origin := openAs(t, path, Options{}); origin != Loaded {
				t.Errorf("after the next write: origin %s", origin)
			}
		})
	}
}

func TestNewerVersionIsLeftAlone(t *testing.T) {
	path := ledgerPath(t)
	content := []byte(`{"version":2,"boot":"boot-1","allocations":{"another":"form"}}`)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Open(path, Options{Boot: "boot-1"}); !errors.Is(err, ErrNewerVersion) {
		t.Fatalf("open: %v, want ErrNewerVersion", err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, content) {
		t.Errorf("the file was touched: %q, %v", got, err)
	}
}

func TestLeftoversOfAKilledWriteAreSwept(t *testing.T) {
	path := ledgerPath(t)
	dir := filepath.Dir(path)
	for _, name := range []string{".ledger.json123456", ".ledger.json", ".ledger.json12x", "ledger.json.damaged-1"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	open(t, path, Options{})
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if diff := cmp.Diff([]string{".ledger.json", ".ledger.json12x", "ledger.json.damaged-1"}, names); diff != "" {
		t.Errorf("files left (-want +got):\n%s", diff)
	}
}

// TestDirectoryGone fails every write without needing root.
func TestDirectoryGone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "ledger.json")
	checkFullDisk(t, path, Options{},
		func() { mustDo(t, os.Rename(filepath.Dir(path), filepath.Dir(path)+"-gone")) },
		func() { mustDo(t, os.Rename(filepath.Dir(path)+"-gone", filepath.Dir(path))) },
		func(l *Ledger) { l.Release(key("unknown")) }) // any next write
}

// TestDiskFull fills a real tmpfs under the ledger.
func TestDiskFull(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root to mount a tmpfs")
	}
	dir := filepath.Join(t.TempDir(), "run")
	mustDo(t, os.Mkdir(dir, 0o700))
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatalf("mount tmpfs (are you root?): %v", err)
	}
	t.Cleanup(func() { mustDo(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	filler := filepath.Join(dir, "filler")
	checkFullDisk(t, filepath.Join(dir, "ledger.json"), Options{},
		func() {
			if err := os.WriteFile(filler, make([]byte, 64<<10), 0o600); !errors.Is(err, unix.ENOSPC) {
				t.Fatalf("fill the tmpfs: %v, want ENOSPC", err)
			}
		},
		func() { mustDo(t, os.Remove(filler)) },
		(*Ledger).Flush)
}

// checkFullDisk runs one story: while the disk refuses, an allocation fails
// and changes nothing, a release succeeds; afterwards the file catches up.
func checkFullDisk(t *testing.T, path string, o Options, fail, heal func(), catchUp func(*Ledger)) {
	t.Helper()
	mustDo(t, os.MkdirAll(filepath.Dir(path), 0o700))
	var log bytes.Buffer
	o.Cooldown, o.Log = time.Hour, logTo(&log)
	l := open(t, path, o)
	allocate(t, l, "a", anyOf("10.5.34.0/24"))
	allocate(t, l, "b", anyOf("10.5.34.0/24"))
	written, err := os.Stat(path)
	mustDo(t, err)
	before, err := os.ReadFile(path)
	mustDo(t, err)
	l.Flush() // nothing to write
	if at, err := os.Stat(path); err != nil || !os.SameFile(at, written) {
		t.Errorf("a file that lacked nothing was written again: %v", err)
	}

	fail()
	if _, _, err := l.Allocate(key("c"), anyOf("10.5.34.0/24"), nil); err == nil || errors.Is(err, ErrFull) {
		t.Errorf("allocation on a full disk: %v, want the disk's error", err)
	}
	if _, held := l.Get(key("c")); held || l.Usage(prefix("10.5.34.0/24")).Used != 2 {
		t.Errorf("the failed allocation is in memory: %v", l.List())
	}
	if err := l.Adopt(Allocation{Key: key("d"), Addresses: prefixes("10.5.34.9/24")}); err != nil {
		t.Errorf("adopt on a full disk: %v; the pod is a fact", err)
	}
	release(t, l, "a")
	if _, held := l.Get(key("a")); held || !strings.Contains(log.String(), "level=ERROR") {
		t.Errorf("release on a full disk: still held %v, log %q", held, log.String())
	}
	l.Flush() // in vain

	heal()
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the file changed while the disk refused: %v", err)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("failed writes left files: %v, %v", entries, err)
	}
	catchUp(l)
	fresh := open(t, path, o)
	if _, held := fresh.Get(key("a")); held {
		t.Error("the release never got to the disk")
	}
	if _, held := fresh.Get(key("d")); !held {
		t.Error("what was adopted never got to the disk")
	}
	if got := fresh.Usage(prefix("10.5.34.0/24")); got.Used != 2 || got.Cooling != 1 {
		t.Errorf("after a restart: %+v", got)
	}
	if got := allocate(t, fresh, "e", anyOf("10.5.34.0/24")); got != addr("10.5.34.4") {
		t.Errorf("next address is %s: a failed allocation moved the round robin", got)
	}
}

func mustDo(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestConcurrentUse(t *testing.T) {
	path := ledgerPath(t)
	l := open(t, path, Options{})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 10 {
				k := key(fmt.Sprint(i, "-", j%5))
				if _, _, err := l.Allocate(k, anyOf("10.5.34.0/24"), nil); err != nil {
					t.Errorf("allocate for %s: %v", k, err)
				}
				l.List()
				l.Usage(prefix("10.5.34.0/24"))
				if j%3 == 0 {
					l.Release(k)
				}
			}
		})
	}
	wg.Wait()
	if diff := cmp.Diff(l.List(), open(t, path, Options{}).List(), compareAddrs); diff != "" {
		t.Errorf("memory and file differ (-memory +file):\n%s", diff)
	}
}

// TestMove: a container's new sandbox has its record, on disk as in memory.
func TestMove(t *testing.T) {
	path := ledgerPath(t)
	l := open(t, path, Options{})
	for _, id := range []string{"a", "b"} {
		_, _, err := l.Allocate(key(id), anyOf("10.5.34.0/24"), func(a *Allocation) { a.Netns = "/run/netns/" + id })
		mustDo(t, err)
	}
	before, want := l.List(), l.List()
	mustDo(t, l.Move(key("a"), "/run/netns/c"))
	want[0].Netns = "/run/netns/c"
	for name, got := range map[string][]Allocation{"memory": l.List(), "file": open(t, path, Options{}).List()} {
		if diff := cmp.Diff(want, got, compareAddrs); diff != "" {
			t.Errorf("in %s (-want +got):\n%s", name, diff)
		}
	}
	if before[0].Netns != "/run/netns/a" {
		t.Error("what was read before has changed")
	}
	mustDo(t, os.RemoveAll(filepath.Dir(path)))
	mustDo(t, l.Move(key("a"), "/run/netns/c")) // it is there already: nothing to write
	mustDo(t, l.Move(key("unknown"), "/run/netns/c"))
	if err := l.Move(key("b"), "/run/netns/c"); err == nil {
		t.Error("it was moved without a disk")
	}
	if diff := cmp.Diff(want, l.List(), compareAddrs); diff != "" {
		t.Errorf("after a failure (-want +got):\n%s", diff)
	}
}

// TestTook has each change told once, with when it began: before its write.
func TestTook(t *testing.T) {
	var got []Change
	var written time.Time
	l := open(t, ledgerPath(t), Options{
		Step: func(where string) {
			if where == "before the ledger is written" {
				written = time.Now()
			}
		},
		Took: func(c Change, began time.Time) {
			if !began.Before(written) {
				t.Errorf("change %d began at %v, its write at %v", c, began, written)
			}
			got = append(got, c)
		},
	})
	allocate(t, l, "a", anyOf("10.5.34.0/24"))
	allocate(t, l, "b", anyOf("10.5.34.0/24"))
	release(t, l, "a")
	if want := []Change{Allocated, Allocated, Released}; !slices.Equal(got, want) {
		t.Errorf("told of %v, want %v", got, want)
	}
}
