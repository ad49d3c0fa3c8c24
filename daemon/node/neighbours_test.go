package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/tenure-cni/tenure/daemon/attach"
)

// announced writes down what neighbours are told.
type announced struct{ notes []string }

func (a *announced) Announce(_ context.Context, bridge string, addr netip.Addr, mac [6]byte) error {
	a.notes = append(a.notes, fmt.Sprintf("%s %s %x", bridge, addr, mac))
	return errors.New("nobody hears it") // which stops nothing
}

// TestNeighbours: only what differs from the address's own MAC is news, when it
// comes and when it goes.
func TestNeighbours(t *testing.T) {
	r := newRig(t, held(t, "10.5.34.0/24", 7))
	a := &announced{}
	r.cfg.Neighbours = a
	mustAdd(t, r, "plain")
	own := request("own", `,"runtimeConfig":{"mac":"02:00:00:00:00:42"}`)
	if resp := r.Add(t.Context(), own); resp.Error != nil {
		t.Fatal(resp.Error)
	}
	for _, c := range []string{"plain", "own"} {
		if resp := r.Del(t.Context(), request(c, "")); resp.Error != nil {
			t.Error(resp.Error)
		}
	}
	want := []string{"tenure0 10.5.34.3 020000000042", fmt.Sprintf("tenure0 10.5.34.3 %x", attach.MACFor(addr("10.5.34.3")))}
	if !slices.Equal(a.notes, want) {
		t.Errorf("neighbours are told %q, want %q", a.notes, want)
	}
	wantNothing(t, r)
}
