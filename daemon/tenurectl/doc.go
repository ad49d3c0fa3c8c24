// Command tenurectl is the operator's tool. Each command is one call, of the
// node's API through its socket or of the cluster's store through the lease
// package, and a printer.
//
// Exit codes: 0 healthy (warnings allowed), 1 reached and an error stands,
// 2 usage, 3 not reached.
package main
