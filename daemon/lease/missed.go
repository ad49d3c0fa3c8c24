package lease

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// The kinds of events that a watch may miss.
const (
	// MissedPut: a record was written, and the watch did not say so.
	MissedPut = "put"
	// MissedDelete: a record has gone, and the watch did not say so.
	MissedDelete = "delete"
)

// seen is what a watch has shown. Members have lost events (etcd #18089: a
// deletion that a compaction met), and a client cannot tell; so the next list
// is compared with this.
type seen struct {
	mirror  *mirror
	cluster uint64
	// reached is the revision up to which the watch has told everything, by its
	// own word: what is later may be on its way.
	reached int64
	noticed bool // etcd has said so since the list, and not only shown events
}

// reach notes how far an answer brings the watch: to its latest event, or, if it
// is a notice of progress, to the revision in its header.
func (s *seen) reach(revision int64, resp clientv3.WatchResponse) {
	s.reached = max(s.reached, revision)
	if resp.IsProgressNotify() {
		s.reached, s.noticed = max(s.reached, resp.Header.Revision), true
	}
}

// askProgress asks etcd how far the watch has come. The answer is one of the
// watch's.
func (w *Watcher) askProgress(ctx context.Context, stream clientv3.Watcher) error {
	ctx, cancel := context.WithTimeout(ctx, w.notice)
	defer cancel()
	w.seen.noticed = false
	return stream.RequestProgress(ctx)
}

// compare counts and names what a list shows and the watch before it has not
// told. Nothing else is to be done about it: the list is published whole.
func (w *Watcher) compare(ctx context.Context, m *mirror, s *Snapshot) {
	if w.seen.mirror == nil || w.seen.cluster != s.ClusterID || w.seen.reached > s.Revision {
		return // nothing to compare with, or another store
	}
	puts, deletes := w.seen.mirror.missed(m, w.seen.reached)
	if len(deletes) > 0 && w.seen.reached < s.Revision {
		deletes = w.goneBefore(ctx, deletes)
	}
	if len(puts)+len(deletes) == 0 {
		return
	}
	w.counts.missedPuts.Add(uint64(len(puts)))
	w.counts.missedDeletes.Add(uint64(len(deletes)))
	w.log.Warn("the watch has missed events, repaired by a list", "puts", len(puts), "deletes", len(deletes),
		"keys", few(append(puts, deletes...), ", "), "reached", w.seen.reached, "listed", s.Revision)
}

// missed is pure: of a later list, the keys whose last change at a revision up to
// reached is not in m, and those of m that the list lacks. Of the latter the
// list alone does not tell when they went.
func (m *mirror) missed(list *mirror, reached int64) (puts, gone []string) {
	for _, it := range list.order {
		if it.mod > reached {
			continue // its event may be on its way
		}
		if at, found := m.find(it.key); !found || m.order[at].mod != it.mod {
			puts = append(puts, it.key)
		}
	}
	for _, it := range m.order {
		if _, found := list.find(it.key); !found {
			gone = append(gone, it.key)
		}
	}
	return puts, gone
}

// goneBefore are those of the keys that had gone already at the revision that the
// watch had reached. Where etcd has compacted it or does not answer, nobody can
// tell, and nothing is called missed.
func (w *Watcher) goneBefore(ctx context.Context, keys []string) (gone []string) {
	ctx, cancel := context.WithTimeout(ctx, w.call)
	defer cancel()
	resp, err := w.client.Get(ctx, w.keys.All(), clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithRev(w.seen.reached))
	if err != nil {
		w.log.Debug("it cannot be told whether the watch has missed deletions", "keys", few(keys, ", "), "error", err)
		return nil
	}
	there := make(map[string]bool, len(resp.Kvs))
	for _, kv := range resp.Kvs {
		there[string(kv.Key)] = true
	}
	for _, key := range keys {
		if !there[key] {
			gone = append(gone, key)
		}
	}
	return gone
}
