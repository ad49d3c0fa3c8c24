package main

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// bootID names this boot as far as pods are concerned: the kernel's boot ID,
// and the network namespace, since a node in a namespace of its own (a test, a
// container) starts anew with it.
func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot ID: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &st); err != nil {
		return "", fmt.Errorf("look at network namespace: %w", err)
	}
	return fmt.Sprintf("%s/%d", strings.TrimSpace(string(b)), st.Ino), nil
}

// productUUID is the machine's own identity as its firmware tells it; empty
// where there is none.
func productUUID() string {
	b, err := os.ReadFile("/sys/class/dmi/id/product_uuid")
	if err != nil {
		return ""
	}
	return strings.ToLower(strings.TrimSpace(string(b)))
}
