package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"

	"github.com/tenure-cni/tenure/daemon/lease"
)

// shared is a prefix of etcd decoded once for all engines of this process.
type shared struct {
	mu      sync.Mutex
	snap    *lease.Snapshot
	changed chan struct{} // closed and replaced with every snap
}

func newShared() *shared { return &shared{changed: make(chan struct{})} }

// show makes s the latest.
func (s *shared) show(snap *lease.Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.snap = snap
	close(s.changed)
	s.changed = make(chan struct{})
}

// at waits for a snapshot of a revision or a later one.
func (s *shared) at(ctx context.Context, revision int64) (*lease.Snapshot, error) {
	for {
		s.mu.Lock()
		snap, changed := s.snap, s.changed
		s.mu.Unlock()
		if snap != nil && snap.Revision >= revision {
			return snap, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for revision %d: %w", revision, ctx.Err())
		}
	}
}

// tap is one engine's lease.Source. It asks etcd for all that an engine asks for
// and takes every byte of the answers, so that etcd has its full work; what they
// say, it has from shared, and not before its own answers have come to it.
type tap struct {
	shared *shared
	prefix string // of the keys, with the slash
}

// List implements lease.Source.
func (t *tap) List(ctx context.Context, c *clientv3.Client) (*lease.Snapshot, error) {
	var got answer
	req := &pb.RangeRequest{Key: []byte(t.prefix), RangeEnd: []byte(clientv3.GetPrefixRangeEnd(t.prefix))}
	if err := c.ActiveConnection().Invoke(ctx, pb.KV_Range_FullMethodName, req, &got, anySize(), grpc.ForceCodecV2(unread{})); err != nil {
		return nil, fmt.Errorf("list %s: %w", t.prefix, err)
	}
	snap, err := t.shared.at(ctx, got.revision)
	if err != nil {
		return nil, err
	}
	listed := *snap
	listed.Listed, listed.Term = true, got.term
	return &listed, nil
}

// tapPause is the time between two tries to list or to watch.
const tapPause = 300 * time.Millisecond

// Watch implements lease.Source.
func (t *tap) Watch(ctx context.Context, c *clientv3.Client, onNew func(*lease.Snapshot)) {
	first, err := t.List(ctx, c)
	for ; err != nil; first, err = t.List(ctx, c) {
		if pause(ctx, tapPause) != nil {
			return
		}
	}
	onNew(first)
	var own reached
	own.to(first.Revision)
	var streams sync.WaitGroup
	defer streams.Wait()
	streams.Go(func() {
		for ctx.Err() == nil {
			_ = t.stream(ctx, c, &own) // it has ended: it is begun anew, as the client's is
			_ = pause(ctx, tapPause)
		}
	})
	for shown := first.Revision; ; {
		snap, err := t.shared.at(ctx, shown+1)
		if err != nil || own.wait(ctx, snap.Revision) != nil {
			return
		}
		shown = snap.Revision
		onNew(snap)
	}
}

// stream is one watch from where the last one has come to.
func (t *tap) stream(ctx context.Context, c *clientv3.Client, own *reached) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	desc := &grpc.StreamDesc{StreamName: "Watch", ServerStreams: true, ClientStreams: true}
	s, err := c.ActiveConnection().NewStream(ctx, desc, pb.Watch_Watch_FullMethodName, anySize(), grpc.ForceCodecV2(unread{}))
	if err != nil {
		return err
	}
	if err := s.SendMsg(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{
		Key: []byte(t.prefix), RangeEnd: []byte(clientv3.GetPrefixRangeEnd(t.prefix)), StartRevision: own.revision.Load() + 1,
	}}}); err != nil {
		return err
	}
	// The answer to the request itself bears a revision too, of what is still
	// to come.
	for begun := false; ; begun = true {
		var got answer
		if err := s.RecvMsg(&got); err != nil {
			return err
		}
		if begun {
			own.to(got.revision)
		}
	}
}

// anySize takes answers of any length, as etcd's client does.
func anySize() grpc.CallOption { return grpc.MaxCallRecvMsgSize(math.MaxInt32) }

// reached is the revision that a watch has come to.
type reached struct {
	revision atomic.Int64
	mu       sync.Mutex
	changed  chan struct{}
}

func (r *reached) to(revision int64) {
	r.revision.Store(max(revision, r.revision.Load())) // of one goroutine
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}

func (r *reached) wait(ctx context.Context, revision int64) error {
	for {
		r.mu.Lock()
		if r.revision.Load() >= revision {
			r.mu.Unlock()
			return nil
		}
		if r.changed == nil {
			r.changed = make(chan struct{})
		}
		changed := r.changed
		r.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// answer is of the header of an answer of etcd's.
type answer struct {
	revision int64
	term     uint64 // raft's
}

// unread is gRPC's codec less the decoding of what is not looked at.
type unread struct{}

// Name implements encoding.CodecV2.
func (unread) Name() string { return proto.Name }

// Marshal implements encoding.CodecV2.
func (unread) Marshal(v any) (mem.BufferSlice, error) {
	return encoding.GetCodecV2(proto.Name).Marshal(v)
}

// errNoHeader says that an answer does not begin with a header.
var errNoHeader = errors.New("an answer of etcd's without a header")

// Unmarshal implements encoding.CodecV2. The header is the first field of all
// answers of etcd's, and shorter than 128 bytes.
func (unread) Unmarshal(data mem.BufferSlice, v any) error {
	start := make([]byte, 2)
	r := data.Reader()
	defer func() { _ = r.Close() }()
	if _, err := io.ReadFull(r, start); err != nil || start[0] != 1<<3|2 || start[1] >= 1<<7 {
		return errNoHeader
	}
	text := make([]byte, start[1])
	if _, err := io.ReadFull(r, text); err != nil {
		return errNoHeader
	}
	var h pb.ResponseHeader
	if err := encoding.GetCodecV2(proto.Name).Unmarshal(mem.BufferSlice{mem.SliceBuffer(text)}, &h); err != nil {
		return fmt.Errorf("header of an answer: %w", err)
	}
	*v.(*answer) = answer{revision: h.Revision, term: h.RaftTerm}
	return nil
}
