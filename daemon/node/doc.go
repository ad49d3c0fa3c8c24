// Package node holds the use cases of one node: ADD, DEL, CHECK, GC and
// STATUS, the status object, and what the data plane shall look like.
//
// It owns the order in which the leaves are called and the undo of each step.
// It promises that an address is on record before anybody hears of it, that a
// call which fails or whose caller has gone leaves nothing behind, and that no
// ADD is answered unless the subnet was in date both before and after. The
// leaves (lease, ipam, attach, dataplane) do not know each other; this package
// and tenured join them, through the small interfaces declared here.
//
// It must not import an HTTP server, etcd's client or netlink.
package node
