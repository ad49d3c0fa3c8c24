// Package server is the daemon's HTTP: the API on the unix socket, and the
// listener for metrics and health.
//
// It owns the socket's file and who may speak to it. It promises that a socket
// left by a dead daemon is replaced, that a live one and any other kind of file
// are left alone, and that nobody but root (or the daemon's own user) is
// answered. It decides nothing about pods: every body is handed to a use case.
//
// It must not import etcd's client, netlink, or the leaves of the daemon.
package server
