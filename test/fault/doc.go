// Package fault lets a cluster of real daemons go through a schedule of faults
// and judges what became of it.
//
// A schedule is a pure function of a seed, a length and a number of nodes: which
// fault strikes whom, when, for how long. A run starts daemons in namespaces and
// an etcd of real processes, carries the schedule out, heals everything, waits
// until all is well again, and judges: by the checker of test/ownership over
// etcd's whole history and every packet, by the deadlines in the kernels, by
// the addresses, the ledgers, the logs. Whatever it finds is told with its time,
// the faults that stood then, and the command that does it again.
//
// The mutants are the check of the check: the product broken on purpose, in one
// place each, and the schedules by name that have to show it.
//
//	TENURE_SEED=7 TENURE_TIME=1m TENURE_NODES=8   one run (make test-fault)
//	TENURE_SOAK=1 TENURE_TIME=8h                  random seeds (make test-soak)
//	TENURE_MUTANTS=all                            every mutant (make test-mutants)
//
// It must not import a package of the product other than daemon/api.
package fault
