// Package fencetest is a fence without a kernel: it holds nothing back and
// remembers what a kernel would. That the kernel obeys is tested in daemon/fence.
//
// It must not import a package of the product: those of daemon/lease's own tests
// use it too, and say what a subnet is by the type parameter.
package fencetest
