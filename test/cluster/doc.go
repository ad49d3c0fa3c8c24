// Package cluster gives tests a born cluster of real daemons, and the few
// things that tests of it all do: pods, CNI calls, programs with their exit
// codes, packets that carry a name, and a look into etcd and the kernel.
//
// It owns what e2e and field have in common. It promises that each wait has a
// deadline and that whatever it started ends with the test. It must not import
// a package of the product other than daemon/api: what it asks is what an
// operator could ask, through the binaries, etcd, the ip command and the
// kernel's maps.
package cluster
