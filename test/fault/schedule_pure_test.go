package fault

import (
	"reflect"
	"slices"
	"testing"
	"time"
)

// TestPlan: the same seed gives the same schedule, another one another; nobody is
// struck twice at once; every kind comes up.
func TestPlan(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for seed := range uint64(60) {
		s := plan(seed, time.Minute, 5+int(seed%6))
		if again := plan(seed, time.Minute, s.Nodes); !reflect.DeepEqual(s, again) {
			t.Fatalf("seed %d gives %v and %v", seed, s, again)
		}
		if other := plan(seed+1000, time.Minute, s.Nodes); reflect.DeepEqual(s.Faults, other.Faults) {
			t.Errorf("seeds %d and %d give the same", seed, seed+1000)
		}
		if len(s.Faults) < 10 {
			t.Errorf("seed %d gives only %d faults in a minute: %v", seed, len(s.Faults), s)
		}
		for i, f := range s.Faults {
			seen[f.Kind] = true
			if f.ends() > s.Time || f.For <= 0 || f.On != "" && f.On == f.Other {
				t.Errorf("seed %d: %v, of a schedule of %s", seed, f, s.Time)
			}
			for _, o := range s.Faults[:i] {
				if f.Kind != "store-restored" && !(schedule{Nodes: s.Nodes, Faults: []fault{o}}).room(f) {
					t.Errorf("seed %d: %v beside %v", seed, f, o)
				}
			}
			if f.Kind == "store-restored" && !slices.ContainsFunc(s.Faults[:i], func(o fault) bool { return o.Kind == "store-saved" }) {
				t.Errorf("seed %d: %v, and nothing was saved before", seed, f)
			}
		}
	}
	for _, k := range kinds() {
		if !seen[k.name] {
			t.Errorf("%s never comes up", k.name)
		}
	}
}

// TestPlanOfAFew: the smallest cluster has a schedule too.
func TestPlanOfAFew(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		if s := plan(seed, 15*time.Second, 3); len(s.Faults) < 2 {
			t.Errorf("seed %d gives %v", seed, s)
		}
	}
}
