package node

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
)

const noneValid = `,"cni.dev/valid-attachments":[]`

// TestGCLeavesWhatIsYounger: the runtime's list says nothing about what is
// added once the call has come in, under a new key or under one that the GC
// is about to remove.
func TestGCLeavesWhatIsYounger(t *testing.T) {
	r := newRig(t, held(t, "10.5.34.0/24", 7))
	for _, c := range []string{"a-removed", "b-again", "c-deleted", "d-removed"} {
		mustAdd(t, r, c)
	}
	mustIPAMAdd(t, r, "e-ipam")
	r.interfaces.del = func(string) error { // while the first is being removed
		r.interfaces.del = nil
		mustAdd(t, r, "b-again")
		if resp := r.Del(t.Context(), request("c-deleted", "")); resp.Error != nil {
			t.Error(resp.Error)
		}
		mustAdd(t, r, "c-deleted")
		mustAdd(t, r, "z-new")
		return nil
	}
	if resp := r.GC(t.Context(), request("", noneValid)); resp.Error != nil {
		t.Fatal(resp.Error)
	}
	if got, want := containers(r), []string{"b-again", "c-deleted", "e-ipam", "z-new"}; !slices.Equal(got, want) {
		t.Errorf("on record %v, want %v", got, want)
	}
	if got := r.interfaces.count(); got != 3 {
		t.Errorf("%d interfaces exist, want 3", got)
	}
	// The next list is younger.
	if resp := r.GC(t.Context(), request("", noneValid)); resp.Error != nil {
		t.Fatal(resp.Error)
	}
	if got := containers(r); !slices.Equal(got, []string{"e-ipam"}) {
		t.Errorf("on record %v after the next GC, want the address of tenure-ipam", got)
	}
}

// TestGCWaitsForAnAdd: a GC that comes in while an ADD is at work waits for its
// key, and leaves it.
func TestGCWaitsForAnAdd(t *testing.T) {
	r := newRig(t, held(t, "10.5.34.0/24", 7))
	synctest.Test(t, func(t *testing.T) {
		done := make(chan *api.Response, 1)
		r.interfaces.added = func() error {
			go func() { done <- r.GC(t.Context(), request("", noneValid)) }()
			<-time.After(time.Second) // of the bubble: the GC waits for the key now
			return nil
		}
		mustAdd(t, r, "c1")
		if resp := <-done; resp.Error != nil {
			t.Error(resp.Error)
		}
	})
	if got := containers(r); !slices.Equal(got, []string{"c1"}) || r.interfaces.count() != 1 {
		t.Errorf("on record %v with %d interfaces, want the pod", got, r.interfaces.count())
	}
	if len(r.added.keys) != 0 {
		t.Errorf("with no GC at work it remembers %v", r.added.keys)
	}
}
