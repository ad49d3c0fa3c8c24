package main

import (
	"fmt"
	"testing"
)

func TestServersIn(t *testing.T) {
	const text = "# nameserver 192.0.2.1\nsearch example.org\n  nameserver\t192.0.2.53 # here\n" +
		"nameserver 127.0.0.53\nnameserver ::1\nnameserver fe80::1%eth0\nnameserver 2001:db8::53\nnameserver nonsense\nnameserver\n"
	if got, want := fmt.Sprint(serversIn(text)), "[192.0.2.53 fe80::1 2001:db8::53]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
