package shim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/tenure-cni/tenure/daemon/api"
)

// call is one verb on its way to the daemon.
type call struct {
	socket string
	path   string // of the API
	req    api.Request
}

// post sends the call and waits for its answer until ctx ends. While nothing
// listens it tries again after each pause, until dialWait has passed. Only a
// call that no daemon has seen is sent again.
func (c *call) post(ctx context.Context, dialWait, pause time.Duration) (resp *api.Response, err error) {
	client := api.NewClient(c.socket)
	err = untilHeard(ctx, dialWait, pause, func() error {
		resp, err = client.Call(ctx, c.path, &c.req)
		return err
	})
	return resp, err
}

// receive is post for an answer that must arrive: take passes it on.
func (c *call) receive(ctx context.Context, dialWait, pause time.Duration, take func(*api.Response) error) error {
	client := api.NewClient(c.socket)
	return untilHeard(ctx, dialWait, pause, func() error { return client.Receive(ctx, c.path, &c.req, take) })
}

func untilHeard(ctx context.Context, dialWait, pause time.Duration, send func() error) error {
	giveUp := time.NewTimer(dialWait)
	defer giveUp.Stop()
	for {
		err := send()
		if err == nil || !notListening(err) {
			return err
		}
		select {
		case <-time.After(pause):
		case <-giveUp.C:
			return err
		case <-ctx.Done():
			return err
		}
	}
}

// notListening tells whether no daemon took the connection: no socket yet, a
// socket that nobody serves, or a backlog that is full (connect on a
// non-blocking unix socket answers EAGAIN then).
func notListening(err error) bool {
	var op *net.OpError
	if !errors.As(err, &op) || op.Op != "dial" {
		return false
	}
	return errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EAGAIN)
}

func (c *call) daemon() string { return "tenured on " + c.socket }

// unreached says what kept the daemon from answering and where to look.
func (c *call) unreached(code uint, err error) *types.Error {
	const look = "see: systemctl status tenured; journalctl -u tenured"
	switch {
	case notListening(err):
		return types.NewError(code, "tenured is not up: nothing listens on "+c.socket,
			fmt.Sprintf("%v; is tenured running, with this socket? %s", err, look))
	case errors.Is(err, context.DeadlineExceeded):
		return types.NewError(code, c.daemon()+" did not answer in time",
			fmt.Sprintf("%v; %s", err, look))
	default:
		return types.NewError(code, c.daemon()+" gave no usable answer",
			fmt.Sprintf("%v; %s", err, look))
	}
}
