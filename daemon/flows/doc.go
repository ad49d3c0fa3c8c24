// Package flows has the kernel forget the connections of pods that are gone,
// so that the next pod with the same address is not sent their packets: what
// was translated on its way to a pod (a published port, a service) goes on to
// that address for as long as connection tracking remembers it.
//
// It owns the connection-tracking entries of addresses that it is told are
// free. It promises that DEL does not wait for it, that an ADD with such an
// address does, for a short time, and that whatever the number of entries it
// works for a small part of the time.
//
// It must not import other packages of the product: an address is a given.
package flows
