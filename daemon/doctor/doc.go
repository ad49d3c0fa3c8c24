// Package doctor says what is wrong with a host that runs, or is to run,
// Tenure: what the kernel lacks, which settings stand in the way, and where
// the daemon's word, its ledger, the kernel and the CNI configuration differ.
//
// Observe gathers Facts, Judge makes Findings of them. Judge is pure. Observe
// changes nothing: what has to be tried, it tries in a network namespace of its
// own that is gone when it returns. (Trying may make the kernel load a module,
// as the daemon would.)
//
// It must not import etcd: it looks at one host. It needs no daemon; where one
// answers, its status is a fact like any other.
package doctor
