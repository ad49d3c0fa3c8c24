package ownership

import (
	"context"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
)

// Ops listens to etcd clients: what they ask that is about subnets' keys and
// leases, and what they are answered. Its zero value is not usable, see NewOps.
type Ops struct {
	names names

	mu      sync.Mutex
	clients int
	ops     []Op
}

// NewOps listens for keys below --etcd-prefix.
func NewOps(prefix string) *Ops { return &Ops{names: namesIn(prefix)} }

// All are the calls so far. One that is under way counts as without an answer.
func (o *Ops) All() []Op {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.ops)
}

// Of are the options for a client of that node: lease.Dial takes them. The
// client's own attempts are calls of their own.
func (o *Ops) Of(node string) []grpc.DialOption {
	o.mu.Lock()
	defer o.mu.Unlock()
	l := listener{ops: o, client: o.clients, node: node}
	o.clients++
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(l.unary), grpc.WithChainStreamInterceptor(l.stream)}
}

// Tap notes a request by its method and message, without ever an answer. It
// returns false, so that it can stand as a match among the rules of a proxy.
func (o *Ops) Tap(node string) func(method string, request any) bool {
	l := listener{ops: o, client: Tapped, node: node}
	return func(_ string, request any) bool {
		for _, op := range l.asked(request) {
			o.add(op)
		}
		return false
	}
}

// add notes a call that has no answer yet, and returns where.
func (o *Ops) add(op Op) int {
	op.Return = Never
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ops = append(o.ops, op)
	return len(o.ops) - 1
}

func (o *Ops) answered(at int, f func(*Op)) {
	returned := now()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ops[at].Return = returned
	f(&o.ops[at])
}

// listener is one client's.
type listener struct {
	ops    *Ops
	client int
	node   string
}

func (l listener) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	var noted []int
	for _, op := range l.asked(req) {
		noted = append(noted, l.ops.add(op))
	}
	err := call(ctx, method, req, reply, cc, opts...)
	if err != nil { // whatever it says: without an answer the outcome counts as unknown
		return err
	}
	for _, at := range noted {
		l.ops.answered(at, func(op *Op) { op.learn(reply) })
	}
	return nil
}

// learn takes what the answer says.
func (o *Op) learn(reply any) {
	switch r := reply.(type) {
	case *pb.TxnResponse:
		o.Succeeded, o.Revision = r.Succeeded, r.Header.Revision
	case *pb.PutResponse:
		o.Succeeded, o.Revision = true, r.Header.Revision
	case *pb.DeleteRangeResponse:
		o.Succeeded, o.Revision = true, r.Header.Revision
	case *pb.LeaseGrantResponse:
		o.Succeeded, o.TTL = true, time.Duration(r.TTL)*time.Second
	}
}

// asked are the calls in a request that are worth noting, one per subnet's key.
func (l listener) asked(request any) []Op {
	op := Op{Client: l.client, Node: l.node, Call: now()}
	switch r := request.(type) {
	case *pb.TxnRequest:
		return l.transaction(op, r)
	case *pb.PutRequest:
		op.Kind, op.Key, op.Put, op.Lease = OpBare, string(r.Key), true, r.Lease
	case *pb.DeleteRangeRequest:
		op.Kind, op.Key, op.Delete = OpBare, string(r.Key), true
	case *pb.LeaseGrantRequest:
		op.Kind, op.Lease = OpRenew, r.ID
		return []Op{op}
	default:
		return nil
	}
	if _, ok := l.ops.names.subnet(op.Key); !ok {
		return nil
	}
	return []Op{op}
}

func (l listener) transaction(op Op, r *pb.TxnRequest) []Op {
	byKey := map[string]*Op{}
	var order []string
	at := func(key []byte) *Op {
		name := string(key)
		if _, ok := l.ops.names.subnet(name); !ok {
			return nil
		}
		if byKey[name] == nil {
			of := op
			of.Key = name
			byKey[name], order = &of, append(order, name)
		}
		return byKey[name]
	}
	for _, do := range r.Success {
		switch {
		case do.GetRequestPut() != nil:
			if o := at(do.GetRequestPut().Key); o != nil {
				o.Put, o.Lease = true, do.GetRequestPut().Lease
			}
		case do.GetRequestDeleteRange() != nil:
			if o := at(do.GetRequestDeleteRange().Key); o != nil {
				o.Delete = true
			}
		}
	}
	others := 0
	for _, c := range r.Compare {
		o := at(c.Key)
		if o == nil || len(c.RangeEnd) > 0 || c.Result != pb.Compare_EQUAL {
			others++
			continue
		}
		o.Compares = append(o.Compares, compareOf(c))
	}
	var all []Op
	for _, name := range order {
		o := byKey[name]
		o.Others = others > 0 || len(order) > 1
		all = append(all, *o)
	}
	return all
}

func compareOf(c *pb.Compare) Compare {
	switch c.Target {
	case pb.Compare_CREATE:
		return Compare{ByCreate, c.GetCreateRevision()}
	case pb.Compare_MOD:
		return Compare{ByMod, c.GetModRevision()}
	case pb.Compare_LEASE:
		return Compare{ByLease, c.GetLease()}
	default:
		return Compare{ByOther, 0}
	}
}

// stream listens to keep-alives.
func (l listener) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil || method != pb.Lease_LeaseKeepAlive_FullMethodName {
		return s, err
	}
	return &keepAlives{ClientStream: s, listener: l}, nil
}

// keepAlives is a stream of keep-alives, which are answered in their order.
type keepAlives struct {
	grpc.ClientStream
	listener listener

	mu   sync.Mutex
	sent []int
}

// SendMsg notes a keep-alive.
func (k *keepAlives) SendMsg(m any) error {
	if r, ok := m.(*pb.LeaseKeepAliveRequest); ok {
		at := k.listener.ops.add(Op{Client: k.listener.client, Node: k.listener.node, Kind: OpRenew, Lease: r.ID, Call: now()})
		k.mu.Lock()
		k.sent = append(k.sent, at)
		k.mu.Unlock()
	}
	return k.ClientStream.SendMsg(m)
}

// RecvMsg notes its answer.
func (k *keepAlives) RecvMsg(m any) error {
	if err := k.ClientStream.RecvMsg(m); err != nil {
		return err
	}
	r, ok := m.(*pb.LeaseKeepAliveResponse)
	k.mu.Lock()
	defer k.mu.Unlock()
	if !ok || len(k.sent) == 0 {
		return nil
	}
	at := k.sent[0]
	k.sent = k.sent[1:]
	k.listener.ops.answered(at, func(op *Op) { op.Succeeded, op.TTL = r.TTL > 0, time.Duration(r.TTL)*time.Second })
	return nil
}
