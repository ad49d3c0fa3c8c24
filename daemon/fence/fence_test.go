package fence

import (
	"errors"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var (
	ours    = Subnets{V4: netip.MustParsePrefix("10.5.1.0/24")}
	others  = Subnets{V4: netip.MustParsePrefix("10.5.9.0/24")}
	cluster = Network{V4: netip.MustParsePrefix("10.5.0.0/16")}
)

func TestOpenIsClosed(t *testing.T) {
	f := openFence(t)
	if d := f.Deadline(); d != 0 {
		t.Errorf("a new fence is open until %s", d)
	}
	if s, n, err := f.Live(); err != nil || !s.IsZero() || !n.IsZero() {
		t.Errorf("a new fence holds %s in %s, %v", s, n, err)
	}
	if err := f.Arm(f.Generation(), BootTime()+time.Hour); !errors.Is(err, ErrNoSubnet) {
		t.Errorf("armed for no subnet: %v", err)
	}
	if d := f.Deadline(); d != 0 {
		t.Errorf("a refused Arm left %s", d)
	}
}

func TestArm(t *testing.T) {
	f := openFor(t, ours, cluster)
	until := BootTime() + time.Hour
	must(t, f.Arm(f.Generation(), until))
	if d := f.Deadline(); d != until {
		t.Fatalf("armed until %s, the kernel has %s", until, d)
	}
	if err := f.Arm(f.Generation(), -1); err == nil || f.Deadline() != until {
		t.Fatalf("a negative deadline: error %v, the kernel has %s", err, f.Deadline())
	}
	if err := f.Arm(0, until+1); !errors.Is(err, ErrSuperseded) {
		t.Fatalf("a generation never read: %v", err)
	}
	past := BootTime()
	must(t, f.Arm(f.Generation(), past))
	if got := run(t, f, overlay, outward, packet(known, "10.5.1.7", "10.5.2.7")); got != "closed" {
		t.Fatalf("a deadline already past: %s", got)
	}
}

// What ends a tenancy early discards the cycle in flight.
func TestSuperseded(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  func(*Fence) error
		left time.Duration // from the deadline before
	}{
		{"Close", func(f *Fence) error { f.Close(); return nil }, -1},
		{"CutTo earlier", func(f *Fence) error { return f.CutTo(f.Deadline() - time.Second) }, -time.Second},
		{"CutTo later", func(f *Fence) error { return f.CutTo(f.Deadline() + time.Second) }, 0},
		{"another subnet", func(f *Fence) error { return f.Set(others, cluster) }, -1},
		{"no subnet", func(f *Fence) error { return f.Set(Subnets{}, cluster) }, -1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := openFor(t, ours, cluster)
			gen, before := f.Generation(), f.Deadline()
			must(t, tc.end(f))
			want := before + tc.left
			if tc.left == -1 {
				want = 0
			}
			if d := f.Deadline(); d != want {
				t.Errorf("the deadline is %s, want %s", d, want)
			}
			if err := f.Arm(gen, before+time.Hour); !errors.Is(err, ErrSuperseded) {
				t.Errorf("a cycle from before could arm: %v", err)
			}
			if d := f.Deadline(); d != want {
				t.Errorf("the refused Arm moved the deadline to %s", d)
			}
		})
	}
}

func TestCutTo(t *testing.T) {
	f := openFor(t, ours, cluster)
	if err := f.CutTo(-time.Second); err == nil || f.Deadline() != 0 {
		t.Fatalf("cut to a negative deadline: error %v, the kernel has %s", err, f.Deadline())
	}
	must(t, f.CutTo(BootTime()+time.Hour))
	if d := f.Deadline(); d != 0 {
		t.Fatalf("cutting opened a closed fence until %s", d)
	}
	gen := f.Close()
	until := BootTime() + time.Hour
	if err := f.Arm(gen, until); err != nil || f.Deadline() != until {
		t.Fatalf("a new cycle after Close: %v, the kernel has %s", err, f.Deadline())
	}
}

func TestSet(t *testing.T) {
	f := openFor(t, ours, cluster)
	gen, until, object := f.Generation(), f.Deadline(), f.live.page

	must(t, f.Set(ours, cluster))
	if &f.live.page[0] != &object[0] || f.Generation() != gen {
		t.Error("the same pair again was written")
	}

	wider := Network{V4: pfx("10.0.0.0/8")}
	must(t, f.Set(ours, wider))
	if f.Deadline() != until || f.Generation() != gen {
		t.Errorf("widening Network moved the deadline from %s to %s", until, f.Deadline())
	}
	if s, n, err := f.Live(); err != nil || s != ours || n != wider {
		t.Errorf("in force: %s in %s, %v", s, n, err)
	}
	if got := run(t, f, overlay, outward, packet(known, "10.9.1.7", "10.5.2.7")); got != "source" {
		t.Errorf("the wider Network is not judged by: %s", got)
	}

	if err := f.Set(ours, Network{V4: pfx("10.6.0.0/16")}); err == nil || f.Deadline() != until {
		t.Errorf("a bad Network: %v, the deadline is %s", err, f.Deadline())
	}
	if err := f.Set(Subnets{V4: pfx("10.5.9.0/24"), V6: pfx("fd00:5::/64")}, wider); err == nil || f.Deadline() != 0 {
		t.Errorf("a bad subnet: %v, the deadline is %s", err, f.Deadline())
	}
	if s, _, err := f.Live(); err != nil || s != ours {
		t.Errorf("after a bad subnet %s is in force, %v", s, err)
	}
}

func TestTokens(t *testing.T) {
	f := openFence(t)
	a, b, c := [6]byte{2, 0, 0, 0, 0, 0xa}, [6]byte{2, 0, 0, 0, 0, 0xb}, [6]byte{2, 0, 0, 0, 0, 0xc}
	one, two := pfx("10.5.1.0/24"), pfx("fd00:5:0:2::/64")
	expect := func(why string, want map[[6]byte]netip.Prefix) {
		t.Helper()
		got, err := f.Tokens()
		must(t, err)
		if len(got) != len(want) {
			t.Fatalf("%s: %v, want %v", why, got, want)
		}
		for mac, p := range want {
			if got[mac] != p {
				t.Fatalf("%s: %v, want %v", why, got, want)
			}
		}
	}
	must(t, f.Allow(a, one))
	must(t, f.Allow(b, two))
	must(t, f.Allow(b, two))
	expect("two peers", map[[6]byte]netip.Prefix{a: one, b: two})
	must(t, f.Allow(c, one))
	expect("a later tenant", map[[6]byte]netip.Prefix{b: two, c: one})
	must(t, f.Allow(a, pfx("10.5.0.0/23")))
	expect("an overlapping one", map[[6]byte]netip.Prefix{b: two, a: pfx("10.5.0.0/23")})
	must(t, f.Allow(a, one))
	expect("the same MAC with another subnet", map[[6]byte]netip.Prefix{b: two, a: one})
	must(t, f.Deny(b))
	must(t, f.Deny(b))
	expect("denied twice", map[[6]byte]netip.Prefix{a: one})
	must(t, f.maps.tokens.Delete(a))
	expect("deleted by someone", nil)
	must(t, f.Allow(a, one))
	expect("allowed again", map[[6]byte]netip.Prefix{a: one})
	for _, bad := range []netip.Prefix{{}, netip.MustParsePrefix("10.5.1.1/24")} {
		if err := f.Allow(c, bad); err == nil {
			t.Errorf("%s was taken for a subnet", bad)
		}
	}
}

func BenchmarkArm(b *testing.B) {
	f := openFor(b, ours, cluster)
	gen, until := f.Generation(), BootTime()+time.Hour
	for b.Loop() {
		if err := f.Arm(gen, until); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSetNetwork(b *testing.B) {
	f := openFor(b, ours, cluster)
	networks := []Network{{V4: pfx("10.0.0.0/8")}, cluster}
	for i := 0; b.Loop(); i++ {
		if err := f.Set(ours, networks[i%2]); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkProgram is what one frame costs in the kernel.
func BenchmarkProgram(b *testing.B) {
	f := openFor(b, ours, cluster)
	must(b, f.Allow(known, pfx("10.5.2.0/24")))
	for d, fr := range map[direction][]byte{
		outward: packet(known, "10.5.1.7", "10.5.2.7"),
		inward:  packet(known, "10.5.2.7", "10.5.1.7"),
	} {
		b.Run(programName(overlay, d), func(b *testing.B) {
			_, each, err := f.programs[overlay][d].prog.Benchmark(fr, max(b.N, 1), b.ResetTimer)
			must(b, err)
			b.ReportMetric(float64(each.Nanoseconds()), "ns/frame")
		})
	}
}

// Without the right to load programs there is no fence, and the error says so.
func TestUnsupported(t *testing.T) {
	needsRoot(t)
	failed := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the thread loses its rights and dies with this goroutine
		none := make([]unix.CapUserData, 2)
		if err := unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0]); err != nil {
			failed <- err
			return
		}
		f, err := Open(Options{})
		if err == nil {
			err = f.Release()
		}
		failed <- err
	}()
	err := <-failed
	if !errors.Is(err, ErrUnsupported) || !errors.Is(err, os.ErrPermission) {
		t.Fatalf("got %v", err)
	}
	t.Log(err)
}

// The kernel is asked for many tokens at a time.
func TestManyTokens(t *testing.T) {
	f := openFence(t)
	for _, count := range []int{tokensAtOnce, 2*tokensAtOnce + 1} {
		for i := range count {
			// Straight into the map: Allow compares each with all.
			must(t, f.maps.tokens.Put([6]byte{2, 0, 0, 0, byte(i >> 8), byte(i)}, newToken(manyth(i))))
		}
		got, err := f.Tokens()
		must(t, err)
		if len(got) != count {
			t.Fatalf("%d tokens, want %d", len(got), count)
		}
		for i := range count {
			if mac := ([6]byte{2, 0, 0, 0, byte(i >> 8), byte(i)}); got[mac] != manyth(i) {
				t.Fatalf("%x stands for %s, want %s", mac, got[mac], manyth(i))
			}
		}
	}
}

func manyth(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)
}
