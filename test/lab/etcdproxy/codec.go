package etcdproxy

import (
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// raw is the codec of messages that are passed on as they came: *[]byte.
type raw struct{}

// Name is the one that both sides announce: the bytes are protobuf.
func (raw) Name() string { return proto.Name }

// Marshal gives the bytes away.
func (raw) Marshal(v any) (mem.BufferSlice, error) {
	b, ok := v.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("marshal %T: want *[]byte", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(*b)}, nil
}

// Unmarshal copies the bytes, which gRPC takes back.
func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("unmarshal %T: want *[]byte", v)
	}
	*b = data.Materialize()
	return nil
}

// blank makes the request of a method, nil for one that no rule is about.
func blank(method string) any {
	switch method {
	case pb.KV_Range_FullMethodName:
		return new(pb.RangeRequest)
	case pb.KV_Put_FullMethodName:
		return new(pb.PutRequest)
	case pb.KV_DeleteRange_FullMethodName:
		return new(pb.DeleteRangeRequest)
	case pb.KV_Txn_FullMethodName:
		return new(pb.TxnRequest)
	case pb.KV_Compact_FullMethodName:
		return new(pb.CompactionRequest)
	case pb.Watch_Watch_FullMethodName:
		return new(pb.WatchRequest)
	case pb.Lease_LeaseGrant_FullMethodName:
		return new(pb.LeaseGrantRequest)
	case pb.Lease_LeaseRevoke_FullMethodName:
		return new(pb.LeaseRevokeRequest)
	case pb.Lease_LeaseKeepAlive_FullMethodName:
		return new(pb.LeaseKeepAliveRequest)
	case pb.Lease_LeaseTimeToLive_FullMethodName:
		return new(pb.LeaseTimeToLiveRequest)
	case pb.Maintenance_Status_FullMethodName:
		return new(pb.StatusRequest)
	}
	return nil
}

// request decodes a method's request; nil if it cannot.
func request(method string, msg []byte) any {
	req := blank(method)
	if req == nil || decode(msg, req) != nil {
		return nil
	}
	return req
}

func decode(msg []byte, into any) error {
	return encoding.GetCodecV2(proto.Name).Unmarshal(mem.BufferSlice{mem.SliceBuffer(msg)}, into)
}

func encode(v any) ([]byte, error) {
	data, err := encoding.GetCodecV2(proto.Name).Marshal(v)
	if err != nil {
		return nil, err
	}
	defer data.Free()
	return data.Materialize(), nil
}
