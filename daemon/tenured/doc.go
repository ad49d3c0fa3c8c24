// Command tenured is the node daemon: it reads its settings, wires the parts
// together and runs them until it is told to stop.
//
// It owns the order of starting (identity and ledger, queued DELs, socket,
// fence, lease, data plane) and the two files it writes for others: subnet.env
// and the conflist. It promises that trouble with etcd, the kernel or the
// config key never ends the process, and that stopping changes nothing: not
// the lease, not the kernel, not a file but the socket.
package main
