package lease

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/daemon/api"
)

// duplicateNode is the problem of two machines under one name, UID or address.
const duplicateNode = "duplicate-node"

// undisputed makes sure that no other machine has the address under which this
// UID or this name holds a subnet: a clone of this machine would. If that cannot
// be told, the key is left to lapse, which costs this node nothing but its old
// subnet: no pod outlives a boot.
func (e *Engine) undisputed(ctx context.Context, own Entry) bool {
	silent, err := e.cfg.Silent(ctx, own.Address())
	if err == nil && silent {
		return true
	}
	e.log.Warn("own subnet of before is left to lapse: its address may be another machine's",
		"subnet", own.Subnets, "publicIP", own.Address(), "answered", !silent, "error", err)
	return false
}

// renewed is how long ago a lease was renewed, and its length as granted.
type renewed struct{ ago, granted time.Duration }

// lives says that the holder has renewed it within three intervals: it may have
// missed two, but not been away.
func (r renewed) lives() bool { return r.granted > 0 && r.ago < 3*Interval(r.granted) }

// lastRenewed asks etcd how much of a lease is left.
func (e *Engine) lastRenewed(ctx context.Context, id clientv3.LeaseID) (renewed, error) {
	return askTime(ctx, e.client, id, e.callTimeout())
}

// identified is false while another machine lives under this node's name or
// UID: the first is never disturbed. Once it has not renewed its lease for three
// intervals, or is gone, this node goes on as a newcomer. If it was the UID that
// both had, this one is the copy, and takes a new one first.
func (e *Engine) identified(ctx context.Context, others []Entry) (time.Duration, bool) {
	uid := e.cfg.Memory.Get().UID
	for _, other := range others {
		r, err := e.lastRenewed(ctx, other.Lease)
		if err != nil {
			return e.denied(err), false
		}
		e.copied = e.copied || other.Tenant().UID == uid
		if r.lives() {
			e.refuseFor(other, r)
			return jitter(min(retryWaiting, Interval(r.granted))), false
		}
	}
	e.update(func() { e.conflict = ""; delete(e.problems, duplicateNode) })
	if !e.copied {
		return 0, true
	}
	e.copied = false
	m := e.cfg.Memory.Get()
	m.UID, m.Held, m.Moving = uuid.NewString(), nil, nil
	if err := e.cfg.Memory.Save(m); err != nil {
		e.log.Error("the new identity is not on disk", "error", err)
	}
	e.log.Warn("this node takes a new identity: its UID was on record at another machine", "was", uid, "is", m.UID)
	return 0, false
}

// late undoes an acquisition that another machine of this node's name was a
// moment quicker with: both found the name free. Nothing is armed yet.
func (e *Engine) late(ctx context.Context, h Holding) bool {
	s := e.caughtUp(ctx, h.create)
	if s == nil || find(s, func(o Entry) bool { return o.namesake(h) && o.CreateRevision < h.create }) == nil {
		return false
	}
	e.unused = 0
	if err := e.end(ctx, h.lease); err != nil {
		e.denied(err) // it counts for nothing from now on, and lapses
	}
	return true
}

// namesake says that another machine holds the record under the holding's name.
func (e Entry) namesake(h Holding) bool {
	who, own := e.Tenant(), h.record.Tenant()
	return who.UID != "" && who.UID != own.UID && who.Node == own.Node
}

// caughtUpWait bounds the wait for the watch.
const caughtUpWait = time.Second

// caughtUp waits until the watch has shown a revision; nil if it does not in
// good time.
func (e *Engine) caughtUp(ctx context.Context, revision int64) *Snapshot {
	ctx, cancel := context.WithTimeout(ctx, caughtUpWait)
	defer cancel()
	for {
		v, changed := e.Changed()
		if v.Snapshot != nil && v.Snapshot.Revision >= revision {
			return v.Snapshot
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

func (e *Engine) refuseFor(other Entry, r renewed) {
	who := other.Tenant()
	what := fmt.Sprintf("the node name %q is", who.Node)
	fix := "give this node another --node-name, or stop the other one"
	if who.UID == e.cfg.Memory.Get().UID {
		what = fmt.Sprintf("the identity (UID %s) in this node's state directory is", who.UID)
		fix = "if this machine is a clone, remove node.json from its --state-dir, and give it another name; or stop the other machine"
	}
	text := fmt.Sprintf("%s in use by the machine at %s, which holds %s and renewed its lease %s ago", what, other.Address(), other.Subnets, r.ago)
	if other.Address().IsValid() && e.cfg.Local(other.Address()) {
		text += "; that address is this machine's too: another daemon on it, or another machine that answers for it"
	}
	e.update(func() {
		if e.conflict == "" {
			e.log.Error("refused: another machine lives under this node's name", "holder", other.Address(), "subnet", other.Subnets, "node", who.Node, "uid", who.UID)
		}
		e.started, e.conflict = true, text
		e.problems.add(duplicateNode, api.SeverityError, text, fix+"; if the other one is gone, this node goes on by itself within three of its renewal intervals")
	})
}

// nextEnd is which lease of a full network ends next.
type nextEnd struct {
	text  string
	at    time.Time
	whose Entry // zero if no lease was found
}

// stands says that the text is worth saying still: it is young, and the record
// that it names is there.
func (n nextEnd) stands(s *Snapshot, now time.Time) bool {
	e, there := s.Entry(n.whose.Subnets)
	return now.Sub(n.at) < countEvery && (n.whose.IsZero() || there && e.Lease == n.whose.Lease)
}

// Bounds of the search for it: it is asked for by people, and every lease costs
// a request.
const (
	countEvery = 30 * time.Second
	countMost  = 256
)

// endsNext says which lease ends next, if nobody renews it.
func (e *Engine) endsNext(ctx context.Context, s *Snapshot) string {
	if e.counted.stands(s, time.Now()) {
		return e.counted.text
	}
	ctx, cancel := context.WithTimeout(ctx, maxCall)
	defer cancel()
	var first *Entry
	var left, ago time.Duration
	for _, entry := range s.Entries[:min(len(s.Entries), countMost)] {
		if entry.Lease == 0 {
			continue
		}
		r, err := e.lastRenewed(ctx, entry.Lease)
		if err != nil {
			return e.counted.text
		}
		if remains := r.granted - r.ago; first == nil || remains < left {
			first, left, ago = &entry, remains, r.ago
		}
	}
	e.counted = nextEnd{at: time.Now()}
	if first != nil {
		e.counted.whose = *first
		e.counted.text = fmt.Sprintf("the lease that ends next is that of %s, held by %s, last renewed %s ago: it ends at %s if it is not renewed",
			first.Subnets, first.holder(), ago, time.Now().Add(left).UTC().Format(time.RFC3339))
	}
	return e.counted.text
}
