package fencetest

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/lease"
)

// It is what the engine takes for a fence, and keeps what lease.Fence promises.
func TestRegister(t *testing.T) {
	var r Register[lease.Subnets]
	var f lease.Fence = &r
	one := lease.Subnets{V4: netip.MustParsePrefix("10.5.1.0/24")}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	deadline := func(what string, want time.Duration) {
		t.Helper()
		if d, err := f.Deadline(); err != nil || d != want {
			t.Errorf("%s: deadline %s, %v, want %s", what, d, err, want)
		}
	}
	must(f.Set(one, lease.Subnets{}))
	before := f.Generation()
	must(f.Arm(before, time.Hour))
	deadline("armed", time.Hour)
	must(f.Set(one, one))
	deadline("another network", time.Hour)
	must(f.CutTo(time.Minute))
	deadline("cut", time.Minute)
	must(f.CutTo(time.Hour))
	deadline("cut to what is later", time.Minute)
	if err := f.Arm(before, time.Hour); !errors.Is(err, ErrStale) {
		t.Errorf("armed by what was proven before it was cut: %v", err)
	}
	must(f.Close())
	deadline("closed", 0)
	must(f.Arm(f.Generation(), time.Hour))
	must(f.Set(lease.Subnets{}, one))
	deadline("another subnet", 0)
	if live, err := f.Live(); err != nil || !live.IsZero() || r.Get().Closed != 1 {
		t.Errorf("live %s, %v, closed %d times", live, err, r.Get().Closed)
	}
	refused := errors.New("the kernel refuses")
	must(f.Arm(f.Generation(), time.Hour))
	r.Do(func(s *State[lease.Subnets]) { s.Stuck = refused })
	if err := f.Close(); !errors.Is(err, refused) {
		t.Errorf("close: %v", err)
	}
	deadline("stuck", time.Hour)
}
