package etcdproxy

import (
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// Match says whether a rule is about a request: its method's full name, as
// etcd's generated code has it (pb.KV_Txn_FullMethodName), and the request
// decoded (*pb.TxnRequest), which is nil for methods that rules are not about.
// It must not call the proxy.
type Match func(method string, request any) bool

// Method is every request of a method.
func Method(fullName string) Match {
	return func(method string, _ any) bool { return method == fullName }
}

// When is every request of a type that is as wanted.
func When[Request any](want func(*Request) bool) Match {
	return func(_ string, request any) bool {
		r, ok := request.(*Request)
		return ok && want(r)
	}
}

// Puts is a put of the key, alone or in a transaction that may commit.
func Puts(key string) Match { return puts(func(k string) bool { return k == key }) }

// PutsBelow is a put of any key with the prefix.
func PutsBelow(prefix string) Match {
	return puts(func(k string) bool { return strings.HasPrefix(k, prefix) })
}

func puts(want func(key string) bool) Match {
	return func(_ string, request any) bool {
		switch r := request.(type) {
		case *pb.PutRequest:
			return want(string(r.Key))
		case *pb.TxnRequest:
			for _, op := range r.Success {
				if put := op.GetRequestPut(); put != nil && want(string(put.Key)) {
					return true
				}
			}
		}
		return false
	}
}

// EventMatch says whether a rule is about an event of a watch. It must not
// call the proxy.
type EventMatch func(*mvccpb.Event) bool

// EventOf is every event of a key.
func EventOf(key string) EventMatch {
	return func(e *mvccpb.Event) bool { return string(e.GetKv().GetKey()) == key }
}
