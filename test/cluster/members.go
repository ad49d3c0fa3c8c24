package cluster

import (
	"context"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/test/lab"
)

// electionTime bounds how long some members may be without a leader.
const electionTime = 20 * time.Second

// Leader waits until one of the members leads. It is the first that says so of
// itself: of a leader that was overtaken and does not know yet, ask the others.
func Leader(ctx context.Context, t testing.TB, members ...*lab.Etcd) (leader *lab.Etcd) {
	t.Helper()
	Eventually(ctx, t, electionTime, "a member of etcd leads", func() error {
		for _, m := range members {
			leads, err := leads(ctx, m)
			if err != nil {
				return err
			}
			if leads {
				leader = m
				return nil
			}
		}
		return fmt.Errorf("none of %d members does", len(members))
	})
	return leader
}

func leads(ctx context.Context, m *lab.Etcd) (bool, error) {
	c, err := m.Client()
	if err != nil {
		return false, err
	}
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	s, err := c.Status(ctx, m.URL())
	if err != nil {
		return false, err
	}
	return s.Leader == s.Header.MemberId, nil
}

// CutPeers cuts a member off from the others, and from nobody else, until heal is
// called.
func CutPeers(ctx context.Context, t testing.TB, member *lab.Etcd) (heal func()) {
	t.Helper()
	rules := func(verb string) {
		t.Helper()
		for _, chain := range []string{"INPUT", "OUTPUT"} {
			for _, port := range []string{"--sport", "--dport"} {
				Exec(ctx, t, member, "iptables", "-w", verb, chain, "-p", "tcp", port, "2380", "-j", "DROP")
			}
		}
	}
	rules("-I")
	return func() { rules("-D") }
}

// Hang stops a member until goOn is called; its kernel still acknowledges what
// comes. Its monotonic clock goes on, as in a machine whose processors are taken away.
func Hang(t testing.TB, member *lab.Etcd) (goOn func()) {
	t.Helper()
	send := func(sig unix.Signal) {
		t.Helper()
		if err := member.Signal(sig); err != nil {
			t.Fatal(err)
		}
	}
	send(unix.SIGSTOP)
	return func() { send(unix.SIGCONT) }
}
