// Package proxy puts a cable between a TCP client and its server that a test
// can pull: a one-connection-in, one-connection-out forwarder on loopback.
//
// It promises that Cut and Stall bind every connection, old and new, from the
// moment they return, and that Close waits for everything it started. It must
// not import anything but the standard library.
package proxy
