package node

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/attach"
	"github.com/tenure-cni/tenure/ipam"
)

// dies takes away a pod's interface, as its namespace does when it dies.
func (r *rig) dies(container string) {
	r.interfaces.mu.Lock()
	defer r.interfaces.mu.Unlock()
	delete(r.interfaces.exist, attach.HostName(r.owner(keyFor(container))))
}

// renamed gives a pod's interface another name, and leaves whose it is.
func (r *rig) renamed(container string) {
	r.interfaces.mu.Lock()
	defer r.interfaces.mu.Unlock()
	name := attach.HostName(r.owner(keyFor(container)))
	r.interfaces.exist["other0"] = r.interfaces.exist[name]
	delete(r.interfaces.exist, name)
}

// stray puts an interface into the kernel that no record knows.
func (r *rig) stray(container string, addrs ...string) {
	w := attach.Want{Owner: r.owner(keyFor(container))}
	for _, a := range addrs {
		w.Addrs = append(w.Addrs, prefix(a))
	}
	r.interfaces.mu.Lock()
	defer r.interfaces.mu.Unlock()
	r.interfaces.exist[w.HostName()] = w
}

// unclaimed has an address borne, and on record for nobody known.
func (r *rig) unclaimed(t *testing.T, address string) {
	t.Helper()
	r.interfaces.borne = map[netip.Addr]bool{prefix(address).Addr(): true}
	if err := r.ledger.Adopt(Unclaimed(prefix(address))); err != nil {
		t.Fatal(err)
	}
}

func keyFor(container string) ipam.Key {
	return ipam.Key{Network: "net", ContainerID: container, IfName: "eth0"}
}

func (r *rig) mustLook(t *testing.T, before sight) sight {
	t.Helper()
	now, err := r.look(t.Context(), before)
	if err != nil {
		t.Fatal(err)
	}
	return now
}

// TestCollect: what was dead at two looks is freed, and nothing else.
func TestCollect(t *testing.T) {
	for name, c := range map[string]struct {
		first   func(*testing.T, *rig) // before the first look
		between func(*testing.T, *rig) // before the second
		want    []string               // containers on record afterwards
		links   int
	}{
		"a living pod":                     {want: []string{"c1"}, links: 1},
		"dead at both looks":               {first: func(_ *testing.T, r *rig) { r.dies("c1") }},
		"dead at the second only":          {between: func(_ *testing.T, r *rig) { r.dies("c1") }, want: []string{"c1"}},
		"dead, but its namespace may live": {first: func(_ *testing.T, r *rig) { r.dies("c1"); r.interfaces.living = map[string]bool{"/run/netns/c1": true} }, want: []string{"c1"}},
		"renamed by somebody": {
			first: func(_ *testing.T, r *rig) { r.renamed("c1") },
			want:  []string{"c1"}, links: 1,
		},
		"deleted and added between": {
			first: func(_ *testing.T, r *rig) { r.dies("c1") },
			between: func(t *testing.T, r *rig) {
				r.Del(t.Context(), request("c1", ""))
				mustAdd(t, r, "c1")
				r.dies("c1")
			},
			want: []string{"c1"},
		},
		"added again between": {
			first:   func(_ *testing.T, r *rig) { r.dies("c1") },
			between: func(t *testing.T, r *rig) { mustAdd(t, r, "c1") },
			want:    []string{"c1"}, links: 1,
		},
		"a call is at work at the second look": {
			first: func(_ *testing.T, r *rig) { r.dies("c1") },
			between: func(t *testing.T, r *rig) {
				unlock, err := r.keys.lock(t.Context(), keyFor("c1"))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(unlock)
			},
			want: []string{"c1"},
		},
		"an address of tenure-ipam, its interface yet to come": {
			first: func(t *testing.T, r *rig) {
				mustIPAMAdd(t, r, "c2")
				r.interfaces.living = map[string]bool{"/run/netns/c2": true}
			},
			want: []string{"c1", "c2"}, links: 1,
		},
		"one whose namespace has no path any more": {
			first: func(t *testing.T, r *rig) {
				mustIPAMAdd(t, r, "c2")
				r.interfaces.borne = map[netip.Addr]bool{r.address(t, "c2"): true}
			},
			want: []string{"c1", "c2"}, links: 1,
		},
		"one whose namespace is gone": {
			first: func(t *testing.T, r *rig) { mustIPAMAdd(t, r, "c2") },
			want:  []string{"c1"}, links: 1,
		},
		"an address in use by nobody known": {
			first: func(t *testing.T, r *rig) { r.unclaimed(t, "10.5.34.99/24") },
			want:  []string{"?", "c1"}, links: 1,
		},
		"one that is in use no more": {
			first:   func(t *testing.T, r *rig) { r.unclaimed(t, "10.5.34.99/24"); r.interfaces.borne = nil },
			between: func(t *testing.T, r *rig) { r.unclaimed(t, "10.5.34.98/24") },
			want:    []string{"?", "c1"}, links: 1,
		},
		"one of which nothing can be told": {
			first: func(t *testing.T, r *rig) { r.unclaimed(t, "10.5.34.99/24"); r.interfaces.borne = nil },
			between: func(t *testing.T, r *rig) {
				r.interfaces.blind = errors.New("torn")
				if _, err := r.look(t.Context(), sight{}); err == nil {
					t.Error("a look that saw nothing is a look")
				}
				r.collectRecord(t.Context(), markOf(r.ledger.List()[0]))
				r.interfaces.blind, r.interfaces.borne = nil, map[netip.Addr]bool{addr("10.5.34.99"): true}
			},
			want: []string{"?", "c1"}, links: 1,
		},
		"an interface that no record knows": {
			first: func(_ *testing.T, r *rig) { r.stray("c9", "10.5.34.99/24") },
			want:  []string{"c1"}, links: 1,
		},
		"one that is there at the second look only": {
			between: func(_ *testing.T, r *rig) { r.stray("c9", "10.5.34.99/24") },
			want:    []string{"c1"}, links: 2,
		},
		"one that has the address of a record": {
			first: func(_ *testing.T, r *rig) { r.stray("c9", r.ledger.List()[0].Addresses[0].String()) },
			want:  []string{"c1"}, links: 2,
		},
		"one that comes to have a record between": {
			first:   func(_ *testing.T, r *rig) { r.stray("c2", "10.5.34.99/24") },
			between: func(t *testing.T, r *rig) { mustAdd(t, r, "c2") },
			want:    []string{"c1", "c2"}, links: 2,
		},
		"one that a call is at work on": {
			first: func(_ *testing.T, r *rig) { r.stray("c9") },
			between: func(t *testing.T, r *rig) {
				unlock, err := r.keys.lock(t.Context(), keyFor("c9"))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(unlock)
			},
			want: []string{"c1"}, links: 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, held(t, "10.5.34.0/24", 7))
			mustAdd(t, r, "c1")
			if c.first != nil {
				c.first(t, r)
			}
			seen := r.mustLook(t, sight{})
			if c.between != nil {
				c.between(t, r)
			}
			r.mustLook(t, seen)
			if got := containers(r); !slices.Equal(got, c.want) || r.interfaces.count() != c.links {
				t.Errorf("on record %v with %d interfaces, want %v with %d", got, r.interfaces.count(), c.want, c.links)
			}
		})
	}
}

// TestCollectUnderTheLock: what changes while the collector waits for a key is
// seen once it has it.
func TestCollectUnderTheLock(t *testing.T) {
	r := newRig(t, held(t, "10.5.34.0/24", 7))
	mustAdd(t, r, "c1")
	was := markOf(r.ledger.List()[0])
	r.collectRecord(t.Context(), was) // it lives
	r.dies("c1")
	older := was
	older.created = older.created.Add(-time.Second)
	r.collectRecord(t.Context(), older) // another record's death was seen
	unlock, err := r.keys.lock(t.Context(), was.key)
	if err != nil {
		t.Fatal(err)
	}
	r.collectRecord(t.Context(), was) // somebody works on it
	unlock()
	if got := containers(r); len(got) != 1 {
		t.Errorf("on record %v, want the pod", got)
	}
	mustAdd(t, r, "c2")
	found, _ := r.interfaces.List(t.Context())
	for _, f := range found {
		r.collectLink(t.Context(), f)
	}
	if r.interfaces.count() != 1 {
		t.Error("an interface is gone that has a record")
	}
}

// TestCollectRuns: without anybody's call a dead pod's address is free after
// the second look.
func TestCollectRuns(t *testing.T) {
	r := newRig(t, held(t, "10.5.34.0/24", 7))
	mustAdd(t, r, "c1")
	r.dies("c1")
	synctest.Test(t, func(t *testing.T) {
		done := make(chan error, 1)
		ctx := t.Context()
		go func() { done <- r.Collect(ctx) }()
		<-time.After(lookEvery + time.Second)
		if got := containers(r); len(got) != 1 {
			t.Errorf("after one look on record: %v", got)
		}
		<-time.After(lookEvery)
		if got := containers(r); len(got) != 0 {
			t.Errorf("after two looks on record: %v", got)
		}
	})
}

// TestRecordFollows: the record names the namespace that the interface is in,
// by which the collector judges it.
func TestRecordFollows(t *testing.T) {
	r := newRig(t, held(t, "10.5.34.0/24", 7))
	mustAdd(t, r, "c1")
	mustIPAMAdd(t, r, "c2")
	for _, c := range []struct {
		container, more string
		add             func(context.Context, *api.Request) *api.Response
	}{{"c1", "", r.Add}, {"c2", `,"ipam":{"type":"tenure-ipam"}`, r.IPAMAdd}} {
		before, _ := r.ledger.Get(keyFor(c.container))
		again := request(c.container, c.more)
		again.Netns = "/run/netns/another"
		if resp := c.add(t.Context(), again); resp.Error != nil {
			t.Fatal(resp.Error)
		}
		after, _ := r.ledger.Get(keyFor(c.container))
		if before.Netns = again.Netns; !cmp.Equal(before, after, cmpopts.EquateComparable(netip.Prefix{})) {
			t.Errorf("on record is %+v, want %+v", after, before)
		}
	}
	r.interfaces.added = func() error { return attach.ErrNamespace }
	wantCode(t, r.Add(t.Context(), request("c1", "")), api.CodeNamespace)
	if a, _ := r.ledger.Get(keyFor("c1")); a.Netns != "/run/netns/another" {
		t.Errorf("an ADD that failed moved the record to %s", a.Netns)
	}
}

// address is that of a container's record.
func (r *rig) address(t *testing.T, container string) netip.Addr {
	t.Helper()
	a, ok := r.ledger.Get(keyFor(container))
	if !ok {
		t.Fatalf("%s is not on record", container)
	}
	return a.Addresses[0].Addr()
}
