// Package lease is the tenant's side of etcd: it acquires, proves, moves, loses
// and gives up the node's pod subnet, and it shows what everybody else holds.
//
// # What it owns
//
// The keys under --etcd-prefix, the records in them, the one lease of this
// node, and the memory file node.json. It owns no kernel state: it drives a
// [Fence], which is the kernel's half of the argument (package fence), and
// hands out whole [Snapshot] values; no add or remove events leave the package.
//
// It must not import netlink, iptables, ebpf, or any package that does (an
// architecture test holds this): a decision about tenancy must not depend on
// the kernel's state, other than through the deadline that [Fence] reports.
//
// # The claim
//
// Two nodes never have their fences open on overlapping subnets. The argument
// has four steps; each names what would break without it.
//
// One: a key has one lease. Who holds a subnet is who has its key under his
// lease, and every write to a subnet key is built in txn.go and nowhere else, as
// a transaction that compares either "this key does not exist" or "this key
// hangs on that lease and is as I last saw it". "Does not exist" is always
// CreateRevision == 0: LeaseValue == 0 is true for an absent key and for one
// without a lease. A [Holding] cannot be built with lease 0, so nothing can be
// proven by a key that is not there. A test looks for writes elsewhere.
//
// Two: the fence is open only up to a deadline that lies before the lease's
// end. It is counted from before the question was sent:
//
//	        node        etcd          etcd         node                       etcd may give
//	        reads t0    renews        proves       arms the fence             the subnet away
//	          │           │             │            │                              │
//	BOOTTIME ─┼───────────┼─────────────┼────────────┼────────────────────┼─────────┼──▶
//	          │           └ TTL runs    │            │                    F      t0 + TTL
//	          │             from here   │            └ until F            │◀ margin ▶│
//	          │                         └ LeaseValue == L,                │          │
//	          │                           CreateRevision == c             │          │
//	          │◀───────────────────────── TTL − margin ──────────────────▶│          │
//
// etcd's TTL restarts after t0, so the lease cannot end before t0 + TTL by a
// clock that runs at the same rate; [Margin] covers those that do not. The TTL
// is the one that etcd granted. F is absolute: a daemon that is stopped on any
// line between computing F and writing it can only write something that has
// passed. Without the proof, a lease that outlived its key would count; with a
// deadline from the receipt of the answer, every slow answer would lengthen it.
// All this is true of one leader of etcd. One of before, which was stopped and goes
// on, renews and ends leases by its own clock; so a lease counts only under the
// leader that granted it, and the key moves with each (term.go).
//
// Three: only a proof moves F on, and only an answer ends a tenancy. An error,
// a timeout, silence leave F as it stands: the node is unproven and everything
// goes on until F. "Lease not found", said again and again where the key still hangs on it, a key that is gone or somebody else's, or
// a proof answered with "false" mean that the subnet is lost: the fence is
// closed first, then one try is made for the same subnet, then the order of
// choice ([Candidates]) is followed. What was in flight when a fence was closed
// or cut is discarded: the Fence's generation has moved on.
//
// Four: nothing that is unknown is treated as known. A write whose answer did
// not come may commit later. The client chooses lease IDs, so it can tell: the
// key is read back, and whose it is, is in its lease ID. "Absent" proves
// nothing, so an unknown acquire is aborted by revoking its own fresh lease
// before another subnet is tried. A key that is asked to move to another lease
// (a changed LeaseTTL, a record inherited) may hang on either until a read shows
// which: both are kept alive, the fence is cut to the lesser of both deadlines
// before the key can move, and neither lease is revoked meanwhile.
//
// # Memory is a hint
//
// node.json says which key to ask about, never whose it is. A key is resumed
// only with this UID and this boot, or with this UID and an address that is on
// this machine and that nobody else answers for. The record of this machine's
// earlier self, or of the flannel that ran here, is inherited by a write that
// compares it as it was read. Everything else is left to lapse, which costs
// nothing: no pod outlives a boot. A machine that finds another one alive under
// its own name or UID is refused; see identity.go.
//
// # When the store forgets
//
// etcd may be wiped, restored from an older state, or be another one. A [Life]
// is which store a node has known, and [Life.Meet] judges an answer by it: only
// answers to the loop's own linearizable reads, for everything else may lag.
// Then absence means nothing: the holder's fence may be open. So
//
//	any node that sees it       puts settle, under a lease as long as any that may be out
//	who has an open fence       puts its own record back at once: nobody else's can be open there
//	who has a closed fence      counts no proof before settle is gone
//	everybody else              acquires nothing before settle is gone
//
// F stands through all this, so traffic never stops on nodes that are connected;
// whoever commits a key keeps it, and a record that is neither this node's nor
// that of an owner it is known to have succeeded closes the fence at once. See
// settle.go.
//
// # When most peers are gone at once
//
// A mistaken delete of a prefix, or a member that answers nonsense, must not empty
// every kernel of the cluster. Where most peers are missing at once they stay
// programmed ([View.Settling]) until a second list, a moment later, lacks them
// too; see confirm.go. This node's own key is no part of that: where it is gone
// the fence closes at once.
//
// # Clocks
//
// F is of CLOCK_BOOTTIME, which counts suspended time and cannot be set. A jump
// of BOOTTIME against MONOTONIC (a suspend) or of REALTIME against BOOTTIME (a
// step, or the pause of a whole guest) makes the next ADD wait for a proof that
// was asked for afterwards; so does a lost connection that is back. No wall
// clock has a part in F.
//
// # Who runs what
//
// One goroutine, the loop, writes to etcd, arms the fence and decides; every
// step of it is list or prove, decide by a pure function (decide.go, life.go,
// choose.go), act. Another one, the watch, only shows whole snapshots and closes
// the fence early; a third one lists again where the watch lacks most peers at
// once, a fourth tells of connections that are back. What they share is behind one
// mutex.
//
// # What it does not cover
//
// Keys edited or leases revoked by hand (noticed, but after the fact); flannel
// nodes in the same prefix; etcd members with known lease bugs; a pause that
// stops every clock of a guest, which only the receivers' token check covers; a
// wiped store whose cluster ID stayed, with no node left that remembers it and a
// holder cut off; and a restored store in the moment before the first node that
// knew it has put settle, in which a node without memory may acquire what the
// backup does not know to be held by a node that is cut off.
package lease
