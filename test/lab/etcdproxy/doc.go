// Package etcdproxy stands between an etcd client and etcd and does to their
// conversation what networks and overloaded servers do: a request is committed
// and its answer is lost, a write that has timed out commits later, an event
// of a watch does not come.
//
//	client ── TCP, which can be cut or stalled ── gRPC, call by call ── etcd
//
// It owns the calls that pass: each request is decoded and shown to the rules
// that stand, every rule that fits acts on it, and what no rule fits passes
// unchanged, with headers, trailers and status. Rules may be made, released and
// removed at any time. It promises that Close waits for everything it started,
// and that no request which is still held back then ever reaches etcd.
//
// It speaks no TLS, and gRPC only: what else etcd serves on that port is not
// there. A client that synchronises its endpoints with the member list would
// find its way around the proxy.
//
// It must not import a package of the product, nor the lab: a host of the lab
// comes as a [Host].
package etcdproxy
