package field

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestA6 is calico #3097 and k3s #532: machines with one host name, of a cloned
// image or with a stale file, share one identity and overwrite each other. Right
// is: while the lease of the first lives, a machine with its name is refused
// with an error that names the first one's address, and stays so; the first
// notices nothing, and its record is not written to. Not even a copy of its
// state directory makes another machine it. When the first has died and its
// lease with it, the other becomes a newcomer, with an identity and a subnet of
// its own.
func TestA6(t *testing.T) {
	t.Run("name", func(t *testing.T) { sameName(t, false) })
	t.Run("name and disk", func(t *testing.T) { sameName(t, true) })
}

func sameName(t *testing.T, disk bool) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.New(ctx, t, cluster.ShortLease, "first")
	first, other := c.Nodes[0], c.AddNode(ctx, t, "other")
	store := c.Store(t)
	was := cluster.Status(ctx, t, first)
	written := revision(ctx, t, store, was.Subnet)
	if disk {
		if err := os.CopyFS(other.StateDir, os.DirFS(first.StateDir)); err != nil {
			t.Fatal(err)
		}
	}

	if err := other.Start(ctx, "--node-name=first"); err != nil {
		t.Fatal(err)
	}
	cluster.Wait(ctx, t, other, "is refused", func(s *api.Status) bool { return refused(s, first) })
	noAddress(ctx, t, other)
	cluster.Stays(ctx, t, 2*ttl, "the first is undisturbed", func() error {
		s, err := first.Status(ctx)
		if err == nil && (s.State != api.StateHeld || s.Subnet != was.Subnet || s.UID != was.UID || s.Lease.ID != was.Lease.ID) {
			err = fmt.Errorf("the first is %s with %s under %+v", s.State, s.Subnet, s.Lease)
		}
		o, otherErr := other.Status(ctx)
		if otherErr == nil && !refused(o, first) {
			otherErr = fmt.Errorf("the other is %s with %q: %s", o.State, o.Subnet, o.Reason)
		}
		return errors.Join(err, otherErr, lives(other))
	})
	if now := revision(ctx, t, store, was.Subnet); now != written {
		t.Errorf("the first one's record was written at revision %d, it was of %d", now, written)
	}

	first.Kill()
	s := cluster.WaitState(ctx, t, other, api.StateHeld)
	if s.UID == was.UID || s.Subnet == was.Subnet {
		t.Errorf("the other holds %s as %s, the first had %s as %s", s.Subnet, s.UID, was.Subnet, was.UID)
	}
	if now := revision(ctx, t, store, was.Subnet); now > written {
		t.Errorf("the first one's record was written at revision %d, it was of %d", now, written)
	}
	addresses(ctx, t, other, "young", s.Subnet)
}

// refused tells whether the node is refused, for a reason that names the
// holder's address.
func refused(s *api.Status, holder *lab.Node) bool {
	return s.State == api.StateRefused && !s.Ready && strings.Contains(duplicate(s), holder.Addr.String())
}
