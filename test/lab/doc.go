// Package lab builds a small cluster on one machine: hosts are network
// namespaces on one bridge, and what runs in them are the real binaries.
//
//	          outside 198.51.100.10        no route to the pod network
//	             |
//	 lan  198.51.100.1 / 192.0.2.1         the router, with the bridge lan0
//	  |         |         |
//	etcd      n1        n2 ...             192.0.2.2, .11, .12, ...
//
// The etcd may have several members, each on a host of its own from 192.0.2.2
// up.
//
// It owns every namespace and control group named tl<id>-*, the processes it
// started and one directory of files; nothing else of the machine is touched, no link, address
// or rule is ever made in the namespace of the caller. It promises that Close
// leaves nothing behind, and that a lab whose owner died without Close is
// removed by the next New: owner and children are on record under
// /run/tenure-lab with pid and start time, and only what matches both is ended.
//
// It must not import any package of the product but daemon/api: what it runs
// is black boxes. It needs root, and ip, iptables and ping in PATH.
package lab
