package cluster

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/test/lab"
)

const (
	flowPort  = 7007
	flowEvery = 5 * time.Millisecond
	// flowQuiet without any packet is an end and no loss.
	flowQuiet = 300 * time.Millisecond
)

// Flow is a datagram every 5 ms from one namespace to another, where each is
// noted and answered. It runs until the test ends.
type Flow struct {
	name string

	mu sync.Mutex
	// arrived is when the last one came in there, answered when the last
	// answer came in here.
	arrived, answered time.Time
	// back says of each datagram, in the order in which they were sent,
	// whether its answer has come in.
	back []bool
}

// StartFlow starts one; the far end listens on the address, which must be on
// the namespace.
func StartFlow(ctx context.Context, t testing.TB, from, to *lab.NS, addr netip.Addr) *Flow {
	t.Helper()
	f := &Flow{name: from.Name() + " to " + addr.String()}
	var server net.PacketConn
	err := to.Do(func() (err error) {
		var lc net.ListenConfig
		server, err = lc.ListenPacket(ctx, "udp", netip.AddrPortFrom(addr, flowPort).String())
		return err
	})
	if err != nil {
		t.Fatalf("flow %s: %v", f.name, err)
	}
	client, err := from.Dial(ctx, "udp", netip.AddrPortFrom(addr, flowPort).String())
	if err != nil {
		t.Fatalf("flow %s: %v", f.name, err)
	}
	stop := make(chan struct{})
	var g sync.WaitGroup
	g.Go(func() { f.answer(server) })
	g.Go(func() { f.read(client, stop) })
	g.Go(func() { f.send(client, stop) })
	t.Cleanup(func() {
		close(stop)
		_, _ = server.Close(), client.Close()
		g.Wait()
	})
	return f
}

// answer notes and returns each datagram.
func (f *Flow) answer(server net.PacketConn) {
	buf := make([]byte, 64)
	for {
		n, from, err := server.ReadFrom(buf)
		if err != nil {
			return
		}
		f.note(&f.arrived)
		_, _ = server.WriteTo(buf[:n], from)
	}
}

func (f *Flow) read(client net.Conn, stop <-chan struct{}) {
	buf := make([]byte, 64)
	for {
		n, err := client.Read(buf)
		select {
		case <-stop:
			return
		default:
		}
		if err == nil { // else an ICMP error on the socket
			f.note(&f.answered)
			f.noteBack(buf[:n])
		}
	}
}

func (f *Flow) send(client net.Conn, stop <-chan struct{}) {
	tick := time.NewTicker(flowEvery)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
			// What cannot be sent does not arrive, which is what is looked at.
			_, _ = client.Write(f.next())
		}
	}
}

// next is another datagram: its number.
func (f *Flow) next() []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.back = append(f.back, false)
	return binary.BigEndian.AppendUint64(nil, uint64(len(f.back)-1))
}

func (f *Flow) noteBack(answer []byte) {
	if len(answer) != 8 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if i := binary.BigEndian.Uint64(answer); i < uint64(len(f.back)) {
		f.back[i] = true
	}
}

func (f *Flow) note(at *time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	*at = time.Now()
}

func (f *Flow) last() (arrived, answered time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.arrived, f.answered
}

// Runs waits until datagrams arrive there and answers here.
func (f *Flow) Runs(ctx context.Context, t testing.TB) {
	t.Helper()
	began := time.Now()
	Eventually(ctx, t, 10*time.Second, "flow "+f.name+" runs", func() error {
		arrived, answered := f.last()
		if arrived.Before(began) || answered.Before(began) {
			return fmt.Errorf("last arrived %s, last answered %s ago", time.Since(arrived), time.Since(answered))
		}
		return nil
	})
}

// Ends waits up to d until nothing has arrived on either end for 300 ms, and
// returns when the last datagram did.
func (f *Flow) Ends(ctx context.Context, t testing.TB, d time.Duration) time.Time {
	t.Helper()
	Eventually(ctx, t, d, "flow "+f.name+" ends", func() error {
		if !f.Quiet() {
			return fmt.Errorf("it runs on")
		}
		return nil
	})
	arrived, answered := f.last()
	if answered.After(arrived) {
		return answered
	}
	return arrived
}

// Sent is how many datagrams have been sent so far, for Lost.
func (f *Flow) Sent() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.back)
}

// Lost is how many of the datagrams that were sent after the first so many, and
// before now, stay without an answer. An answer that is on its way is waited
// for, a second at most. However slow the machine, a datagram that nothing
// dropped is answered: this counts packets, not time.
func (f *Flow) Lost(ctx context.Context, from int) int {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	to, lost := f.Sent(), 0
	_ = lab.Eventually(ctx, "answers", func() error {
		if lost = f.missing(from, to); lost > 0 {
			return fmt.Errorf("%d of %d missing", lost, to-from)
		}
		return nil
	})
	return lost
}

func (f *Flow) missing(from, to int) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, back := range f.back[min(from, to):to] {
		if !back {
			n++
		}
	}
	return n
}

// Whole makes sure that all datagrams from number from to now are answered.
func (f *Flow) Whole(ctx context.Context, t testing.TB, from int) {
	t.Helper()
	if lost := f.Lost(ctx, from); lost > 0 {
		t.Errorf("flow %s lost %d of %d datagrams", f.name, lost, f.Sent()-from)
	}
}

// Quiet tells whether nothing has arrived on either end for 300 ms.
func (f *Flow) Quiet() bool {
	arrived, answered := f.last()
	return time.Since(arrived) > flowQuiet && time.Since(answered) > flowQuiet
}
