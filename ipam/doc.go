// Package ipam hands out the pod addresses of this node's subnets and keeps
// the record of who holds them.
//
// It owns three things: the pool (which addresses of a subnet a pod may have,
// and which is next), the ledger (which Key holds which addresses, and which
// freed ones are still cooling) and the file in which the ledger is kept.
//
// It promises that no two live records share an address, that an allocation
// is on record before Allocate returns, that a record is made and freed as a
// whole, and that a file it cannot read is set aside, never overwritten. The
// file carries the boot it was written in: a pod sandbox does not outlive the
// boot, so a record from an earlier one is dropped.
//
// It must not import anything but the standard library and renameio: what an
// address is must be testable without a kernel, a daemon or a store.
package ipam
