// Package shim is the body of the CNI binaries tenure and tenure-ipam: one CNI
// call becomes one call of tenured's API, and its answer what the runtime
// reads.
//
// It promises that every verb ends in bounded time whether the daemon is up,
// down or silent, that only JSON goes to standard output, and that a DEL is
// either answered by the daemon or on disk for it.
//
// It must not import anything but the CNI library and daemon/api: a runtime
// starts these binaries for each pod, and an etcd or netlink client would
// triple their size and the time they take to start.
package shim
