// Command demo shows on one machine what Tenure does: three nodes, pods that
// reach each other and the world, and then the outage it exists for, replayed
// with real daemons, a real etcd and real packets.
//
// It prints a line for each step with what was seen, ends with a table of the
// final state, and exits with 1 if any step is not as told. It cleans up,
// unless KEEP=1 leaves everything running.
package main
