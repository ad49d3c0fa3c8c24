package lease

import (
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// wentBack is a node that has seen a write by its watch alone, and whose etcd is
// put back to before that write. It does not prove anything by itself meanwhile.
func wentBack(t *testing.T) (*daemon, *clientv3.Client) {
	s, c := cluster(t, `{"Network":"10.5.0.0/22","SubnetLen":24,"LeaseTTL":"90s"}`)
	d := newHost(t, "n1", s.Endpoint).start()
	v := d.waitHeld()
	backup := s.Backup(t)
	put(t, c, NewKeys(prefix).All()+"noise", "so that the backup is older")
	d.wait("the write is seen", func(w View) bool { return w.Snapshot.Revision > v.Snapshot.Revision })
	s.Restore(t, backup)
	return d, c
}

// TestWhatTheWatchHasSeenCounts: a store that lost only what no proof has shown
// yet went back all the same.
func TestWhatTheWatchHasSeenCounts(t *testing.T) {
	t.Parallel()
	d, _ := wentBack(t)
	d.Touch()
	d.wait("knows that the store went back", func(v View) bool { return hasProblem(v, storeWentBack) && v.Settling })
}

// TestSettleThatTheWatchMissed: the store went back and was written to by others,
// settle first, until it was past what this node knew. The watch goes on behind
// that. The next proof shows settle, and the node looks anew.
func TestSettleThatTheWatchMissed(t *testing.T) {
	t.Parallel()
	d, c := wentBack(t)
	if _, err := InitAfterLoss(t.Context(), c, prefix, []byte(tenSeconds), time.Minute); err != nil {
		t.Fatal(err)
	}
	put(t, c, NewKeys(prefix).All()+"noise", "past what was known")
	put(t, c, NewKeys(prefix).All()+"noise", "and again")
	d.Touch()
	d.wait("sees settle", func(v View) bool { return v.Settling && v.Snapshot.Settle.ModRevision != 0 })
}
