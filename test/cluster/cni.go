package cluster

import (
	"context"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/tenure-cni/tenure/test/lab"
)

// Pod adds a pod through cnitool.
func Pod(ctx context.Context, t testing.TB, n *lab.Node, name string, opts ...lab.PodOptions) *lab.Pod {
	t.Helper()
	var o lab.PodOptions
	if len(opts) > 0 {
		o = opts[0]
	}
	p, err := n.AddPod(ctx, name, o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Sandbox makes a pod's namespace without any CNI call.
func Sandbox(ctx context.Context, t testing.TB, n *lab.Node, name string) *lab.Pod {
	t.Helper()
	p, err := n.Sandbox(ctx, name, lab.PodOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Call makes a CNI call of the plugin's binary.
func Call(ctx context.Context, t testing.TB, n *lab.Node, call lab.CNICall) *lab.CNIAnswer {
	t.Helper()
	a, err := n.CNI(ctx, call)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// CallFor is a call about a pod's interface, with the node's own configuration.
func CallFor(verb string, p *lab.Pod, ifName string) lab.CNICall {
	return lab.CNICall{Verb: verb, ContainerID: p.ContainerID(), Netns: p.Path(), IfName: ifName}
}

// Code is the CNI error code of an answer, 0 if the call succeeded.
func Code(a *lab.CNIAnswer) uint {
	if a.Err == nil {
		return 0
	}
	return a.Err.Code
}

// Result reads the result of an ADD that has to have succeeded.
func Result(t testing.TB, a *lab.CNIAnswer) *types100.Result {
	t.Helper()
	if a.Exit != 0 {
		t.Fatalf("call failed: %v", a.Err)
	}
	parsed, err := create.CreateFromBytes(a.Stdout)
	if err != nil {
		t.Fatalf("result %q: %v", a.Stdout, err)
	}
	r, err := types100.GetResult(parsed)
	if err != nil {
		t.Fatalf("result %q: %v", a.Stdout, err)
	}
	if len(r.IPs) == 0 {
		t.Fatalf("result %q holds no address", a.Stdout)
	}
	return r
}
