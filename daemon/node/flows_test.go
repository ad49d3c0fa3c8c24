package node

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
)

// flowNotes writes down what a Node asks of Flows, and how many interfaces
// there are then.
type flowNotes struct {
	rig   *rig
	notes []string
}

func (f *flowNotes) note(what string, addrs []netip.Addr) {
	f.notes = append(f.notes, fmt.Sprintf("%s %v, %d interfaces, %d on record", what, addrs, f.rig.interfaces.count(), len(f.rig.ledger.List())))
}

func (f *flowNotes) Forget(addrs ...netip.Addr) { f.note("forget", addrs) }

func (f *flowNotes) Await(_ context.Context, addrs ...netip.Addr) { f.note("await", addrs) }

// TestFlows: an ADD waits before there is an interface, a repeated one does
// not; whatever frees an address says so once its interface has gone, and
// before another can have it.
func TestFlows(t *testing.T) {
	for name, free := range map[string]func(*testing.T, *rig){
		"DEL": func(t *testing.T, r *rig) { r.Del(t.Context(), request("c1", "")) },
		"GC":  func(t *testing.T, r *rig) { r.GC(t.Context(), request("", `,"cni.dev/valid-attachments":[]`)) },
		"collector": func(t *testing.T, r *rig) {
			r.dies("c1")
			r.mustLook(t, r.mustLook(t, sight{}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, held(t, "10.5.34.0/24", 7))
			f := &flowNotes{rig: r}
			r.cfg.Flows = f
			mustAdd(t, r, "c1")
			mustAdd(t, r, "c1")
			free(t, r)
			want := []string{"await [10.5.34.2], 0 interfaces, 1 on record", "forget [10.5.34.2], 0 interfaces, 1 on record"}
			if !slices.Equal(f.notes, want) {
				t.Errorf("it asked %q, want %q", f.notes, want)
			}
		})
	}
	r := newRig(t, held(t, "10.5.34.0/24", 7))
	f := &flowNotes{rig: r}
	r.cfg.Flows = f
	mustIPAMAdd(t, r, "c1")
	mustIPAMAdd(t, r, "c1")
	r.IPAMDel(t.Context(), request("c1", ""))
	if want := []string{"await [10.5.34.2], 0 interfaces, 1 on record", "forget [10.5.34.2], 0 interfaces, 1 on record"}; !slices.Equal(f.notes, want) {
		t.Errorf("tenure-ipam asked %q, want %q", f.notes, want)
	}
}
