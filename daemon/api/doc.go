// Package api is the wire between the CNI binaries, tenurectl and tenured:
// the types, the codes and a client for the unix socket.
//
// It owns the shape of every body under /v1/ and promises that fields are
// only ever added. It must not import anything but the standard library and
// the CNI types: the binary that a container runtime runs once per pod links
// this package, and an etcd or netlink client would triple its size and its
// start-up time.
package api
