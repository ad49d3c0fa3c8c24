package field

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestH6 is cilium #5619, calico/cni-plugin #410 and testground #396: two
// containers whose ids begin alike get the same name for the host's end of
// their interfaces, which is cut from the id. Right is: ids that are equal in
// their first 12 or more characters, one id with two interfaces, and one id
// and interface on two networks have different names of at most 15 bytes, and
// the same again when an ADD is repeated or comes after a DEL. A DEL takes its
// own away only.
func TestH6(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.New(ctx, t, cluster.Network, "n1")
	n := c.Nodes[0]
	twelve := "0123456789ab"
	long := strings.Repeat(twelve, 5) // 60 of a runtime's 64
	box := cluster.Sandbox(ctx, t, n, "shared")
	all := []attachment{
		{network: "tenure", id: twelve + "0", ifName: "eth0"},
		{network: "tenure", id: twelve + "1", ifName: "eth0"},
		{network: "tenure", id: twelve, ifName: "eth0"},
		{network: "tenure", id: long + "0000", ifName: "eth0"},
		{network: "tenure", id: long + "0001", ifName: "eth0"},
		{network: "tenure", id: long + "0002", ifName: "eth0", box: box},
		{network: "tenure", id: long + "0002", ifName: "eth1", box: box},
		{network: "other", id: long + "0002", ifName: "net0", box: box},
		{network: "other", id: long + "0000", ifName: "eth0"}, // as the fourth
		{network: "tenure", id: long + "0000eth", ifName: "0"},
	}
	hosts, addresses := map[string]int{}, map[string]int{}
	for i := range all {
		a := &all[i]
		if a.box == nil {
			a.box = cluster.Sandbox(ctx, t, n, fmt.Sprintf("b%d", i))
		}
		a.host, a.address = a.add(ctx, t, n)
		if before, dup := hosts[a.host]; dup || len(a.host) > 15 {
			t.Errorf("number %d has the host's end %s, number %d too", i, a.host, before)
		}
		if before, dup := addresses[a.address]; dup {
			t.Errorf("number %d has the address %s, number %d too", i, a.address, before)
		}
		hosts[a.host], addresses[a.address] = i, i
	}
	for i, a := range all {
		if host, address := a.add(ctx, t, n); host != a.host || address != a.address {
			t.Errorf("number %d has %s and %s when it is added again, it had %s and %s", i, host, address, a.host, a.address)
		}
	}
	for i, a := range all {
		a.call(ctx, t, n, "DEL")
		for j, other := range all {
			if j <= i && linkThere(ctx, n, other.host) {
				t.Errorf("after its DEL %s of number %d is there", other.host, j)
			} else if j > i {
				other.call(ctx, t, n, "CHECK")
			}
		}
	}
	used(ctx, t, n, 0)
	for i, a := range all {
		if host, _ := a.add(ctx, t, n); host != a.host {
			t.Errorf("number %d has %s after a DEL, it had %s", i, host, a.host)
		}
	}
}

// attachment is one interface of a container in a network.
type attachment struct {
	network, id, ifName string
	box                 *lab.Pod

	host, address string
}

func (a attachment) call(ctx context.Context, t *testing.T, n *lab.Node, verb string) *lab.CNIAnswer {
	t.Helper()
	call := lab.CNICall{Verb: verb, ContainerID: a.id, IfName: a.ifName, Netns: a.box.Path()}
	call.Config = fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":%q,"type":"tenure","tenure":{"socket":%q}}`, a.network, n.Socket)
	answer := cluster.Call(ctx, t, n, call)
	if answer.Exit != 0 {
		t.Errorf("%s of %s/%s/%s: %v", verb, a.network, a.id, a.ifName, answer.Err)
	}
	return answer
}

func (a attachment) add(ctx context.Context, t *testing.T, n *lab.Node) (host, address string) {
	t.Helper()
	r := cluster.Result(t, a.call(ctx, t, n, "ADD"))
	return r.Interfaces[1].Name, r.IPs[0].Address.String()
}
