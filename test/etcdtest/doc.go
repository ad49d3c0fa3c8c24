// Package etcdtest runs a real etcd server inside a test process, on loopback
// and in a directory that the test framework removes; or beside it, where the
// environment names another etcd (package packaged).
package etcdtest
