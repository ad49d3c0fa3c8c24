package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/daemon/lease"
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

// uidSocket is the abstract socket by which the daemons of one machine know each
// other: the kernel takes it away with the process, and it is of the network
// namespace, as the subnet is.
func uidSocket(uid string) string { return "@tenure/node/" + uid }

// heldUID keeps an identity from being used by another daemon on this machine
// until it is closed.
type heldUID struct {
	l        net.Listener
	answered chan struct{} // closed when nobody answers any more
}

// holdUID holds an identity. The error says that another daemon does.
func holdUID(uid string) (*heldUID, error) {
	l, err := net.Listen("unix", uidSocket(uid))
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, fmt.Errorf("another tenured on this machine has the identity (UID %s) of this --state-dir, which was copied from it; remove node.json from the copy", uid)
	}
	if err != nil {
		return nil, fmt.Errorf("hold the identity %s: %w", uid, err)
	}
	h := &heldUID{l, make(chan struct{})}
	go h.answer()
	return h, nil
}

// answer takes every call and ends it, until the listener is closed: a call that
// nobody takes stays in the listener's queue, and a full queue looks like nobody.
func (h *heldUID) answer() {
	defer close(h.answered)
	for {
		c, err := h.l.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			<-time.After(answerPause) // no descriptors, for example
		default:
			_ = c.Close()
		}
	}
}

// answerPause keeps a lasting fault from spinning.
const answerPause = 100 * time.Millisecond

// Close gives the identity up.
func (h *heldUID) Close() error {
	err := h.l.Close()
	<-h.answered
	return err
}

// uidRuns says whether a daemon with that identity runs on this machine. Only a
// call that is refused, because nobody listens, says that none does.
func uidRuns(uid string) bool {
	c, err := net.DialTimeout("unix", uidSocket(uid), time.Second)
	if err == nil {
		_ = c.Close()
	}
	return !errors.Is(err, unix.ECONNREFUSED)
}

// holdIdentity holds the UID that the engine goes by until ctx ends; a clone
// takes a new one while it runs.
func (d *daemon) holdIdentity(ctx context.Context, first *heldUID) error {
	uid, held := d.memory.Get().UID, first
	defer func() { _ = held.Close() }()
	for {
		v, changed := d.engine.Changed()
		if v.UID != uid {
			if next, err := holdUID(v.UID); err != nil {
				d.log.Warn("the new identity is not held against copies on this machine", "error", err)
			} else {
				_ = held.Close()
				held = next
			}
			uid = v.UID
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// clocks reads the machine's three clocks. One that cannot be read is zero,
// which shows as a gap and costs a proof.
func clocks() lease.Clocks {
	read := func(id int32) time.Duration {
		var ts unix.Timespec
		if err := unix.ClockGettime(id, &ts); err != nil {
			return 0
		}
		return time.Duration(ts.Nano())
	}
	return lease.Clocks{Boot: read(unix.CLOCK_BOOTTIME), Mono: read(unix.CLOCK_MONOTONIC), Real: read(unix.CLOCK_REALTIME)}
}
