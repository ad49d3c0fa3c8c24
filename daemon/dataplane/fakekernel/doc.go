// Package fakekernel is the kernel of package dataplane in memory: a fake
// that passes the same conformance suite as the real one, and a Guard.
//
// It owns the rules of the real kernel that matter to the order of changes: a
// link takes with it what stands on it, a link that goes down loses its routes
// and neighbours, and its IPv6 addresses, a new MAC loses the neighbours, the
// last IPv4 address takes routes and neighbours along, a route needs a link that
// is up. It must not import netlink.
package fakekernel
