// Package packaged runs tests on another etcd than the one that they embed:
// the server that the distribution packages, which is years older, or any that
// is named.
//
// A test knows nothing of it. $TENURE_ETCD, the absolute path of an etcd, makes
// that program the store of whatever labtest and etcdtest start, so all tests
// can be tried on any version; [Again] runs chosen tests of the caller's own
// package a second time, each in a process that has it set.
//
// It owns how etcd's own program is found and called. It must not import a
// package of the product, nor etcd's server: packages that take long to compile
// with it use it too.
package packaged
