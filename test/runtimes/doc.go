// Package runtimes tests Tenure under the container runtimes that people run
// it with: containerd through CRI, and podman with its CNI backend, as the
// distribution ships them.
//
// A runtime works on a machine of its own: a node of a lab with its own mount,
// process, host name and IPC namespaces, so that no file, socket, mount or
// process of it is seen outside, and all of it ends with one process. Pods are
// made of an image that the test builds from a static busybox; no registry is
// ever asked.
//
// It owns those machines, the image and a driver for each runtime. It must not
// import a package of the product but daemon/api.
package runtimes
