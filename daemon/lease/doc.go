// Package lease is the tenant's side of etcd: it acquires, proves and loses
// the node's pod subnet, and it shows what everybody else holds.
//
// # What it owns
//
// The keys under --etcd-prefix, the records in them, the one lease of this
// node, and the memory file node.json. It owns no kernel state: it drives a
// [Fence], which is the kernel's half of the argument, and hands out whole
// [Snapshot] values; no add or remove events leave the package.
//
// # What it promises
//
//   - Every write to a subnet key is built in txn.go and nowhere else, as a
//     transaction that compares either "this key does not exist"
//     (CreateRevision == 0; LeaseValue == 0 is true for a key that does not
//     exist *and* for a key without a lease, and is never used) or "this key
//     hangs on my lease and is as I last saw it". A test looks for writes
//     elsewhere.
//
//   - A [Holding] cannot be built with lease 0, so a proof with lease 0 cannot
//     be asked for.
//
//   - The fence is armed only by a proof, and only up to a deadline counted
//     from before the question was sent:
//
//     t0 ────── keep-alive ── proof ── arm(F) ───────────── F ──── margin ──── t0+TTL
//     │           │                                         │                   │
//     │           └ etcd restarts its TTL somewhere here    └ the kernel closes └ the earliest
//     └ CLOCK_BOOTTIME, before the send                       by itself           etcd may give
//     the subnet away
//
//     etcd counts its TTL from the instant it handles the keep-alive, which is
//     after t0, so the lease cannot end before t0+TTL by a clock that runs at
//     the same rate; the margin covers clocks that do not. F is absolute, so
//     a daemon that is stopped between computing F and writing it can only
//     write something that has already passed.
//
//   - Silence concludes nothing. An error or a timeout leaves F as it stands.
//     Only "lease not found", a deleted or foreign key, or a proof that etcd
//     answers with "false" mean that the subnet is lost; the fence is closed
//     before anything else is done about it.
//
//   - What this node remembers (node.json) is a hint for which key to ask
//     about, never a claim: it only ever becomes a compare.
//
// # What it must not import
//
// netlink, iptables, ebpf, or any package that does (an architecture test
// holds this): a decision about tenancy must not depend on the kernel's state,
// other than through the deadline that [Fence] reports.
package lease
