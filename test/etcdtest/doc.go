// Package etcdtest runs a real etcd server inside a test process, on loopback
// and in a directory that the test framework removes.
package etcdtest
