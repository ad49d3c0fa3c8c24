package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/test/lab"
)

// bulkSize is what Bulk sends each way, in bytes: packets of full size.
const bulkSize = 1 << 20

// Sink takes TCP connections to a port, on any address of the namespace, until
// the test ends. Each brings bulkSize bytes, and gets as many back.
func Sink(ctx context.Context, t testing.TB, at *lab.NS, port int) {
	t.Helper()
	accept(ctx, t, at, "tcp4", port, func(c net.Conn) {
		go func() {
			defer func() { _ = c.Close() }()
			_ = c.SetDeadline(time.Now().Add(sinkTime))
			if _, err := io.CopyN(io.Discard, c, bulkSize); err == nil {
				_, _ = c.Write(make([]byte, bulkSize))
			}
		}()
	})
}

// sinkTime ends a connection that hangs.
const sinkTime = 30 * time.Second

// Bulk connects to a Sink, sends and gets a mebibyte each, and takes no longer
// than d.
func Bulk(ctx context.Context, from *lab.NS, to netip.Addr, port int, d time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	c, err := from.Dial(ctx, "tcp4", netip.AddrPortFrom(to, uint16(port)).String())
	if err != nil {
		return err
	}
	return errors.Join(Exchange(ctx, c), c.Close())
}

// Exchange does on a connection to a Sink what Bulk does. It ends with ctx.
func Exchange(ctx context.Context, c net.Conn) error {
	if until, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(until); err != nil {
			return err
		}
	}
	if _, err := c.Write(make([]byte, bulkSize)); err != nil {
		return fmt.Errorf("send to %s: %w", c.RemoteAddr(), err)
	}
	if n, err := io.CopyN(io.Discard, c, bulkSize); err != nil {
		return fmt.Errorf("got %d bytes from %s: %w", n, c.RemoteAddr(), err)
	}
	return nil
}
