package lease

import (
	"context"
	"errors"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// A member that is cut off from the others takes calls and answers none: each
// costs its whole timeout. The client deals its calls out in turn, and those of a
// renewal fall into step: each renewal makes good what it lost at that member
// and ends where the member is next. So whatever else is asked may come to that
// one again and again, a list for the watch for half a minute and more.
//
// A member knows within an election timeout that it has no leader. Asked to, it
// says so at once and before it does anything, so that the call, a write too, can
// be put to the next member.

// ledPause is how long a call waits before it is put again, to the next member and
// the one after; maxLedPause is for when none has a leader, and all nodes ask.
const (
	ledPause    = 50 * time.Millisecond
	maxLedPause = time.Second
)

// led makes the calls of a client so.
func led() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(ledCall), grpc.WithChainStreamInterceptor(ledStream)}
}

// ledCall makes a call until a member with a leader has it, as long as ctx lets it.
func ledCall(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	ctx = requireLeader(ctx, method)
	pause := newPause()
	pause.InitialInterval, pause.MaxInterval = ledPause, maxLedPause
	for {
		err := invoke(ctx, method, req, reply, cc, opts...)
		if !errors.Is(rpctypes.Error(err), rpctypes.ErrNoLeader) || !wait(ctx, pause.NextBackOff()) {
			return err
		}
	}
}

// ledStream opens a stream that a member without a leader ends at once.
func ledStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return open(requireLeader(ctx, method), desc, cc, method, opts...)
}

// requireLeader asks for it, but not where a member is asked about itself.
func requireLeader(ctx context.Context, method string) context.Context {
	if strings.HasPrefix(method, "/etcdserverpb.Maintenance/") {
		return ctx
	}
	return clientv3.WithRequireLeader(ctx)
}
