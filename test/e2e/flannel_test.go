package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
	"github.com/tenure-cni/tenure/test/lab/labtest"
)

const (
	flannelPrefix = "/coreos.com/network"
	flannelFlag   = "--etcd-prefix=" + flannelPrefix
)

// flannelNode is a node as flannel leaves it: a record in etcd, flannel.1 with a
// route, neighbour and forwarding entry for each peer, a bridge and a pod.
type flannelNode struct {
	*lab.Node
	address, subnet, mac string
	pod                  *lab.Pod
	ip                   netip.Addr
}

// TestComingFromFlannel goes from flannel to Tenure node by node, as
// docs/flannel.md says. The subnets stay, a node of either kind reaches the
// pods of the other, and a node's old pods are not given away.
func TestComingFromFlannel(t *testing.T) {
	ctx := cluster.Context(t, 2*time.Minute)
	c := &cluster.Cluster{Lab: labtest.New(t, lab.Options{})}
	if _, err := c.StartEtcd(ctx); err != nil {
		t.Fatal(err)
	}
	store := c.Store(t)
	putKey(ctx, t, store, flannelPrefix+"/config", `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}`)
	f1 := &flannelNode{address: "192.0.2.11", subnet: "10.5.73.0/24", mac: "62:dd:66:31:0e:01"}
	f2 := &flannelNode{address: "192.0.2.12", subnet: "10.5.74.0/24", mac: "62:dd:66:31:0e:02"}
	for i, f := range []*flannelNode{f1, f2} {
		f.Node = c.AddNode(ctx, t, fmt.Sprint("n", i+1))
		f.publish(ctx, t, store)
		f.build(ctx, t)
	}
	f1.learn(ctx, t, f2.address, f2.subnet, f2.mac)
	f2.learn(ctx, t, f1.address, f1.subnet, f1.mac)
	reaches(ctx, t, f1.pod, f2.ip)

	r := cluster.Run(ctx, t, c.Etcd.NS, "tenurectl", "init", "--network=10.5.0.0/16", flannelFlag, "--etcd-endpoints="+c.Etcd.URL())
	if r.Code != 0 {
		t.Fatalf("init beside flannel: %s", r)
	}
	p1 := f1.migrate(ctx, t)
	// flannel on the other node follows the record, as it does for any peer.
	f2.learn(ctx, t, f1.address, f1.subnet, recordedMAC(ctx, t, store, f1.subnet))
	reaches(ctx, t, p1, f2.ip)
	reaches(ctx, t, f2.pod, p1.IP)

	p2 := f2.migrate(ctx, t)
	cluster.WaitPeers(ctx, t, f1.Node, f2.Node)
	reaches(ctx, t, p1, p2.IP)
	reaches(ctx, t, p2, p1.IP)
}

// publish writes the record that flannel has for the node.
func (f *flannelNode) publish(ctx context.Context, t *testing.T, store *cluster.Store) {
	t.Helper()
	lease, err := store.Grant(ctx, 86400)
	if err != nil {
		t.Fatal(err)
	}
	putKey(ctx, t, store, f.key(), fmt.Sprintf(`{"PublicIP":%q,"PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":%q}}`, f.address, f.mac),
		clientv3.WithLease(lease.ID))
}

func (f *flannelNode) key() string {
	return flannelPrefix + "/subnets/" + strings.ReplaceAll(f.subnet, "/", "-")
}

// base is the subnet without its length and last octet.
func (f *flannelNode) base() string { return strings.TrimSuffix(f.subnet, ".0/24") }

// build makes what flannel and the reference plugin bridge leave in the kernel.
func (f *flannelNode) build(ctx context.Context, t *testing.T) {
	t.Helper()
	f.pod = cluster.Sandbox(ctx, t, f.Node, "old")
	f.ip = netip.MustParseAddr(f.base() + ".9")
	must(ctx, t, f.Node, "ip link add flannel.1 type vxlan id 1 dstport 8472 local "+f.address+" dev eth0 nolearning",
		"ip link set flannel.1 address "+f.mac+" mtu 1450 up", "ip addr add "+f.base()+".0/32 dev flannel.1",
		"ip link add cni0 type bridge", "ip addr add "+f.base()+".1/24 dev cni0", "ip link set cni0 up",
		"sysctl -qw net.ipv4.ip_forward=1", "ip link add v0 type veth peer name eth0 netns "+f.pod.Name(), "ip link set v0 master cni0 up")
	must(ctx, t, f.pod, "ip addr add "+f.ip.String()+"/24 dev eth0", "ip link set eth0 up mtu 1450", "ip route add default via "+f.base()+".1")
}

// learn is what flannel does about a peer's record.
func (f *flannelNode) learn(ctx context.Context, t *testing.T, address, subnet, mac string) {
	t.Helper()
	base := strings.TrimSuffix(subnet, "/24")
	must(ctx, t, f.Node, "ip route replace "+subnet+" via "+base+" dev flannel.1 onlink", "ip neigh replace "+base+" lladdr "+mac+" dev flannel.1 nud permanent",
		"bridge fdb replace "+mac+" dst "+address+" dev flannel.1 self permanent")
}

// migrate does with one node what docs/flannel.md says, and returns a pod that
// Tenure serves.
func (f *flannelNode) migrate(ctx context.Context, t *testing.T) *lab.Pod {
	t.Helper()
	// The pods are drained, flannel is stopped, its devices are removed.
	if err := f.pod.Vanish(); err != nil {
		t.Fatal(err)
	}
	must(ctx, t, f.Node, "ip link del flannel.1", "ip link del cni0")
	if err := f.Start(ctx, flannelFlag); err != nil {
		t.Fatal(err)
	}
	s := cluster.WaitState(ctx, t, f.Node, api.StateHeld)
	if s.Subnet != f.subnet || !cluster.Well(s) {
		t.Errorf("%s holds %s with problems %v, want flannel's %s and none", f.Host, s.Subnet, s.Problems, f.subnet)
	}
	return cluster.Pod(ctx, t, f.Node, "new")
}

// recordedMAC is that of a subnet's record, as flannel reads it.
func recordedMAC(ctx context.Context, t *testing.T, store *cluster.Store, subnet string) string {
	t.Helper()
	resp, err := store.Get(ctx, flannelPrefix+"/subnets/"+strings.ReplaceAll(subnet, "/", "-"))
	if err != nil || len(resp.Kvs) != 1 {
		t.Fatalf("record of %s: %v, %v", subnet, resp, err)
	}
	var r struct {
		PublicIP    string
		BackendType string
		BackendData struct {
			VNI     int
			VtepMAC string
		}
	}
	if err := json.Unmarshal(resp.Kvs[0].Value, &r); err != nil || r.BackendType != "vxlan" || r.BackendData.VNI != 1 {
		t.Fatalf("record %s is not one that flannel reads: %v", resp.Kvs[0].Value, err)
	}
	return r.BackendData.VtepMAC
}

func putKey(ctx context.Context, t *testing.T, store *cluster.Store, key, value string, opts ...clientv3.OpOption) {
	t.Helper()
	if _, err := store.Put(ctx, key, value, opts...); err != nil {
		t.Fatal(err)
	}
}

// must runs commands, each of words without blanks.
func must(ctx context.Context, t *testing.T, in lab.Execer, commands ...string) {
	t.Helper()
	for _, c := range commands {
		words := strings.Fields(c)
		if _, err := in.Exec(ctx, words[0], words[1:]...); err != nil {
			t.Fatal(err)
		}
	}
}

func reaches(ctx context.Context, t *testing.T, from lab.Execer, to netip.Addr) {
	t.Helper()
	short, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := lab.WaitPing(short, from, to); err != nil {
		t.Fatal(err)
	}
}
