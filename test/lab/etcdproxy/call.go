package etcdproxy

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// call is one stream between a client and etcd; a plain call is a stream of
// one message each way. Two goroutines carry it, and may outlive the client.
type call struct {
	p      *Proxy
	method string
	down   grpc.ServerStream // the client's
	up     grpc.ClientStream // etcd's, of a context of our own
	ended  chan error        // what the client is told; the first counts

	mu    sync.Mutex
	keep  bool   // etcd's side goes on without the client
	muted bool   // the client waits for an answer that was lost
	sent  []fate // of requests that are not answered yet
}

// handle is a call's life as the client sees it.
func (p *Proxy) handle(_ any, down grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(down)
	md, _ := metadata.FromIncomingContext(down.Context())
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(p.life, md.Copy()))
	c := &call{p: p, method: method, down: down, ended: make(chan error, 1)}
	context.AfterFunc(down.Context(), func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.keep {
			cancel()
		}
	})
	up, err := p.etcd.NewStream(ctx, both(), method)
	if err != nil {
		cancel()
		return err
	}
	c.up = up
	p.work.Go(c.requests)
	p.work.Go(func() {
		defer cancel()
		c.replies()
	})
	select {
	case err := <-c.ended:
		return err
	case <-down.Context().Done():
		return status.FromContextError(down.Context().Err()).Err()
	}
}

// end tells the client how its call ended, once.
func (c *call) end(err error) {
	select {
	case c.ended <- err:
	default:
	}
}

// lost ends the call as a broken connection does.
func (c *call) lost() {
	c.end(status.Error(codes.Unavailable, "etcdproxy: the answer is lost"))
}

// requests carries what the client sends. Its end, in good order or not, is
// passed on as an end: where etcd is not to go on, the context is cancelled.
func (c *call) requests() {
	defer func() { _ = c.up.CloseSend() }()
	for {
		var msg []byte
		if err := c.down.RecvMsg(&msg); err != nil {
			return
		}
		if !c.request(msg) {
			return
		}
	}
}

// request sends one request on, when its time has come; false ends the call.
func (c *call) request(msg []byte) bool {
	f := c.p.judge(c.method, msg)
	if f.late != nil {
		c.hold(f, msg)
		return true
	}
	c.mu.Lock()
	c.keep = c.keep || f.lose != 0
	keep := c.keep
	c.mu.Unlock()
	pause(c.down.Context(), f.pauses[Request])
	if !keep && c.down.Context().Err() != nil {
		return false // the cancelling may be slower than the message
	}
	// Before the message, or the answer might come first.
	c.mu.Lock()
	c.sent = append(c.sent, f)
	c.mu.Unlock()
	return c.up.SendMsg(&msg) == nil // the reason is in the replies' end
}

// hold takes a request out of the call, whose client gets no answer; it is
// sent on the proxy's own account, which no end of the client or of the
// connection to etcd can touch.
func (c *call) hold(f fate, msg []byte) {
	c.mute()
	if f.lose == Fail {
		c.lost()
	}
	var gone <-chan struct{}
	if f.alone {
		gone = c.down.Context().Done()
	}
	md, _ := metadata.FromIncomingContext(c.down.Context())
	ctx := metadata.NewOutgoingContext(c.p.life, md.Copy())
	c.p.work.Go(func() {
		select {
		case <-f.late.release:
		case <-gone:
		case <-ctx.Done():
		}
		f.late.settled(c.p.send(ctx, c.method, msg))
	})
}

// send makes a call of one request and waits for its first answer, for an etcd
// that is away too.
func (p *Proxy) send(ctx context.Context, method string, msg []byte) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	up, err := p.etcd.NewStream(ctx, both(), method, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	if err := errors.Join(up.SendMsg(&msg), up.CloseSend()); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	var answer []byte
	return up.RecvMsg(&answer)
}

// both is a stream in both directions, which a plain call is a case of.
func both() *grpc.StreamDesc { return &grpc.StreamDesc{ClientStreams: true, ServerStreams: true} }

// replies carries what etcd sends, until it ends the call.
func (c *call) replies() {
	for first := true; ; first = false {
		var msg []byte
		err := c.up.RecvMsg(&msg)
		f := c.answered()
		pause(c.down.Context(), f.pauses[Reply])
		switch {
		case f.lose == Fail:
			c.lost()
		case f.lose == Silence:
			c.mute()
		case err == nil:
			c.reply(msg, first)
		}
		if err != nil {
			c.finish(err)
			return
		}
	}
}

// answered takes the fate of the request that etcd answers. Those of watches
// are empty, whose messages are no answers.
func (c *call) answered() fate {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.sent) == 0 {
		return fate{}
	}
	f := c.sent[0]
	c.sent = c.sent[1:]
	return f
}

// reply passes one message to the client, if it is still there.
func (c *call) reply(msg []byte, first bool) {
	if c.down.Context().Err() != nil {
		return
	}
	if first {
		if md, err := c.up.Header(); err == nil {
			_ = c.down.SendHeader(md)
		}
	}
	if c.method == pb.Watch_Watch_FullMethodName {
		if c.p.muted() {
			return
		}
		msg = c.p.filter(msg)
	}
	_ = c.down.SendMsg(&msg) // a client that is gone ends the call elsewhere
}

// mute keeps the end of the call from the client too.
func (c *call) mute() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.muted = true
}

// finish passes the end of the call on, unless an answer is owed.
func (c *call) finish(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.muted {
		return
	}
	c.down.SetTrailer(c.up.Trailer())
	if errors.Is(err, io.EOF) {
		err = nil
	}
	c.end(err)
}

// pause waits for d, or until the client has gone.
func pause(client context.Context, d time.Duration) {
	if d == 0 {
		return
	}
	wait, cancel := context.WithTimeout(client, d)
	defer cancel()
	<-wait.Done()
}
