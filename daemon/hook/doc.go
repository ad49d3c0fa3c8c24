// Package hook runs the operator's command of --on-stranded: once for each pod
// that sits on a subnet its node has lost.
//
// It owns the command's processes and <run-dir>/on-stranded.json, the memory
// of the pods for which the command has ended well. The memory lies in the
// run directory, since no pod outlives the boot, and it is written after the
// command and not before: a daemon that stops in between runs the command
// again, instead of leaving a pod that nobody has acted on.
//
// It promises that nothing waits for the command, that no more than a few run
// at a time, each within its time, and none after Run has ended or the daemon
// was killed; that a pod which has gone by then gets none; and that one which
// failed is tried again, later each time, and then given up in words. Which
// pods are stranded, and when that is certain enough to act on, its caller
// decides.
//
// It must not import another package of Tenure.
package hook
