// Package uninstall takes an instance of Tenure off a node: CNI configuration
// first, so that no runtime calls what is about to go; then the subnet, the
// daemon, what is in the kernel, the directories; unit and programs last.
//
// It promises: with pods on the node nothing is done unless asked for; what
// another instance needs stays; a run that failed in the middle can be repeated.
// Pods that still run are left running, without their network, and a stub
// answers the DEL that the runtime will make for each.
package uninstall
