// Package conf turns what people write into values that the rest of Tenure can
// trust: the network config that etcd holds (Network), tenured's flags,
// environment and file (Daemon), and one plugin's section of a conflist
// (NetConf). The samples that Tenure ships are here too, parsed by a test.
//
// It promises that a value it returns without an error is valid as a whole,
// that an error names every fault with its field (Faults), and that reading
// configuration writes nothing and contacts nobody.
//
// It must not import etcd, netlink or any other package of Tenure: it decides
// on text, and those who know the kernel or the store hand in what they saw
// (Overlaps, Judge).
package conf
