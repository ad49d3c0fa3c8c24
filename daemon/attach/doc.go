// Package attach makes, checks and removes one pod interface: a veth pair
// whose host end is a hairpin port of the node's bridge and whose other end
// is the pod's interface with its addresses and default routes.
//
// It owns the veths it names, and what is set on them. It promises that Add
// is idempotent, repairs what Check names, leaves nothing behind when it
// fails, and that a link which is not this instance's own is never touched.
// What to do is a pure function of values (Plan); the kernel is read before
// each decision, nothing is remembered.
//
// Both network namespaces are reached through netlink handles, so no thread
// changes its namespace while it works, but for what is set in the pod's
// /proc/sys.
//
// It must not import ipam, the API or the other parts of the daemon: an
// address is a given here.
package attach
