package lease

import (
	"fmt"
	"net/netip"
	"testing"
	"time"
)

// TestMemoryOfFormer: the subnets held before are remembered in their order,
// each once, without the one that is held, and not without end; a new boot
// forgets none, for docker's configuration does not either.
func TestMemoryOfFormer(t *testing.T) {
	var m Memory
	take := func(boot, subnet string) {
		t.Helper()
		h, err := NewHolding(NewKeys("/tenure/network"), Entry{Subnets: Subnets{V4: netip.MustParsePrefix(subnet)}, Lease: 7, CreateRevision: 1, ModRevision: 1}, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		m = m.remember(h, boot)
	}
	for _, step := range []struct{ boot, take, former string }{
		{"b1", "10.5.1.0/24", "[]"},
		{"b1", "10.5.1.0/24", "[]"},
		{"b1", "10.5.2.0/24", "[10.5.1.0/24]"},
		{"b2", "10.5.3.0/24", "[10.5.1.0/24 10.5.2.0/24]"},
		{"b2", "10.5.1.0/24", "[10.5.2.0/24 10.5.3.0/24]"},
		{"b2", "10.5.2.0/24", "[10.5.3.0/24 10.5.1.0/24]"},
	} {
		before := fmt.Sprint(m.Before())
		old := m
		take(step.boot, step.take)
		if got := fmt.Sprint(m.Before()); got != step.former {
			t.Errorf("with %s: former %s, want %s", step.take, got, step.former)
		}
		if got := fmt.Sprint(old.Before()); got != before {
			t.Errorf("the memory of before was changed to %s", got)
		}
	}
	for i := range 40 {
		take("b2", fmt.Sprintf("10.5.%d.0/24", 100+i))
	}
	if all := m.Before(); len(all) != mostFormer || all[0].V4.String() != "10.5.123.0/24" || all[mostFormer-1].V4.String() != "10.5.138.0/24" {
		t.Errorf("former %v, want the latest %d", all, mostFormer)
	}
	m.Former = []string{"rubbish", "10.5.9.0-24"}
	if got := fmt.Sprint(m.Before()); got != "[10.5.9.0/24]" {
		t.Errorf("of a spoilt list: %s", got)
	}
}
