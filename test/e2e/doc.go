// Package e2e tests Tenure as its users meet it: the real binaries on nodes
// that are network namespaces, pods attached through cnitool or by the calls
// of a runtime, and packets.
//
// Each file has one subject: the paths of packets, the firewall, what survives
// a daemon, the fence, a daemon stopped between any two lines, the verbs, a
// vandal, the
// start. It must not import a package of the product but daemon/api.
package e2e
