package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestClients replays what real runtimes were seen to send.
func TestClients(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.New(ctx, t, cluster.Network, "n1")
	for _, test := range []struct {
		name string
		run  func(context.Context, *testing.T, *cluster.Cluster)
	}{
		{"containerd", containerd},
		{"containerd of today", containerdOfToday},
		{"kubelet", kubelet},
		{"nerdctl", nerdctl},
		{"ctr", ctr},
		{"podman", podman},
		{"CRI-O", crio},
		{"power cut", powerCut},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.run(ctx, t, c)
			wantUsed(ctx, t, c.Nodes[0], 0)
		})
	}
}

// kubernetes is CNI_ARGS as CRI runtimes have it, in one of the orders seen.
func kubernetes(id string) [][2]string {
	return [][2]string{{"K8S_POD_INFRA_CONTAINER_ID", id}, {"IgnoreUnknown", "1"}, {"K8S_POD_UID", "u"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", "p"}}
}

// addr is the one address of a result.
func addr(r *types100.Result) netip.Addr {
	a, _ := netip.AddrFromSlice(r.IPs[0].Address.IP)
	return a.Unmap()
}

// containerd: a mapped port with capitalised keys; a DEL at the pod's stop, and
// at its removal another with neither a namespace nor a result.
func containerd(ctx context.Context, t *testing.T, c *cluster.Cluster) {
	n := c.Nodes[0]
	runtime := newClient(t, n, "tenure", "1.0.0", "")
	box := cluster.Sandbox(ctx, t, n, "containerd")
	cluster.Serve(ctx, t, box.NS, port)
	rt := with(t, runtimeConf("c1", box.Path(), kubernetes("c1")...),
		fmt.Sprintf(`{"portMappings":[{"HostPort":%d,"ContainerPort":%d,"Protocol":"tcp","HostIP":""}],"dns":{},"bandwidth":{}}`, hostPort, port))
	r := runtime.mustAdd(ctx, t, rt)
	cluster.Seen(ctx, t, c.Outside, n.Addr, hostPort, c.OutsideAddr())
	runtime.del(ctx, t, rt)
	hostEndGone(ctx, t, n, r)
	wantUsed(ctx, t, n, 0)
	cluster.Unseen(ctx, t, c.Outside, n.Addr, hostPort)
	for range 3 {
		runtime.del(ctx, t, in("", rt))
	}
}

// containerdOfToday asks for STATUS every 5 s; here at once, while pods come and
// go.
func containerdOfToday(ctx context.Context, t *testing.T, c *cluster.Cluster) {
	n := c.Nodes[0]
	runtime := newClient(t, n, "tenure", "1.1.0", "")
	var g sync.WaitGroup
	for i := range 4 {
		box := cluster.Sandbox(ctx, t, n, fmt.Sprintf("today%d", i))
		g.Go(func() {
			for range 5 {
				if err := runtime.status(ctx); err != nil {
					t.Errorf("STATUS: %v", err)
				}
			}
		})
		g.Go(func() {
			rt := runtimeConf(fmt.Sprintf("t%d", i), box.Path(), kubernetes("t")...)
			if _, err := runtime.add(ctx, rt); err != nil {
				t.Errorf("ADD: %v", err)
			}
			runtime.del(ctx, t, rt)
			runtime.del(ctx, t, in("", rt))
		})
	}
	g.Wait()
}

// kubelet makes a new sandbox for one that died, and deletes the old one again
// when it gets to it: the new one is not touched by that.
func kubelet(ctx context.Context, t *testing.T, c *cluster.Cluster) {
	n := c.Nodes[0]
	runtime := newClient(t, n, "tenure", "0.4.0", "")
	old, young := cluster.Sandbox(ctx, t, n, "old"), cluster.Sandbox(ctx, t, n, "young")
	before := runtimeConf("old", old.Path(), kubernetes("old")...)
	after := runtimeConf("young", young.Path(), kubernetes("young")...)
	first := runtime.mustAdd(ctx, t, before)
	runtime.del(ctx, t, before)
	if err := old.Vanish(); err != nil {
		t.Fatal(err)
	}
	if second := runtime.mustAdd(ctx, t, after); addr(second) == addr(first) {
		t.Errorf("%s is given out again at once", addr(first))
	}
	runtime.del(ctx, t, in("", before))
	if err := runtime.check(ctx, after); err != nil {
		t.Errorf("CHECK of the new sandbox after the late DEL of the old one: %v", err)
	}
	wantUsed(ctx, t, n, 1)
	runtime.del(ctx, t, after)
}

// nerdctl makes a DEL before the ADD, knows namespaces by a process, and has
// none left at the DEL that counts.
func nerdctl(ctx context.Context, t *testing.T, c *cluster.Cluster) {
	n := c.Nodes[0]
	runtime := newClient(t, n, "tenure", "1.0.0", "")
	box := cluster.Sandbox(ctx, t, n, "nerdctl")
	netns, end := process(t, box)
	rt := runtimeConf("nerd", netns, [2]string{"IgnoreUnknown", "1"}, [2]string{"NERDCTL_CNI_DHCP_HOSTNAME", "h"})
	runtime.del(ctx, t, rt)
	r := runtime.mustAdd(ctx, t, rt)
	if err := runtime.check(ctx, rt); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	if err := lab.WaitPing(ctx, n, addr(r)); err != nil {
		t.Error(err)
	}
	end()
	runtime.del(ctx, t, rt) // no such process
	runtime.del(ctx, t, in("", rt))
	hostEndGone(ctx, t, n, r)
}

// ctr makes its only DEL with the result, but without a namespace.
func ctr(ctx context.Context, t *testing.T, c *cluster.Cluster) {
	n := c.Nodes[0]
	runtime := newClient(t, n, "tenure", "1.0.0", "")
	netns, _ := process(t, cluster.Sandbox(ctx, t, n, "ctr"))
	rt := runtimeConf("default-ctr", netns)
	r := runtime.mustAdd(ctx, t, rt)
	runtime.del(ctx, t, in("", rt))
	hostEndGone(ctx, t, n, r)
}

// podman asks for versions at every command; it adds a container to several
// networks; at "network reload" it deletes and adds with one id, and asks for
// the address and the MAC that the container had.
func podman(ctx context.Context, t *testing.T, c *cluster.Cluster) {
	n := c.Nodes[0]
	box := cluster.Sandbox(ctx, t, n, "podman")
	cluster.Serve(ctx, t, box.NS, port)
	networks := []*client{newClient(t, n, "tenure", "0.4.0", ""), newClient(t, n, "blue", "0.4.0", ""), newClient(t, n, "green", "0.4.0", "")}
	calls := make([]*libcni.RuntimeConf, len(networks))
	results := make([]*types100.Result, len(networks))
	var g sync.WaitGroup
	for i, network := range networks {
		calls[i] = runtimeConf("pod", box.Path(), [2]string{"IgnoreUnknown", "true"}, [2]string{"K8S_POD_NAME", "web"})
		calls[i].IfName = fmt.Sprintf("eth%d", i)
		g.Go(func() {
			err := network.version(ctx)
			if err == nil {
				results[i], err = network.add(ctx, calls[i])
			}
			if err != nil {
				t.Errorf("%s: %v", calls[i].IfName, err)
			}
		})
	}
	g.Wait()
	if t.Failed() {
		return
	}
	wantUsed(ctx, t, n, 3)
	networks[0].del(ctx, t, calls[0])
	again := with(t, calls[0], fmt.Sprintf(`{"mac":%q,"portMappings":[{"hostPort":%d,"containerPort":%d,"protocol":"tcp"}]}`, results[0].Interfaces[2].Mac, hostPort, port))
	again.Args = append([][2]string{{"IP", addr(results[0]).String()}}, again.Args...)
	if r := networks[0].mustAdd(ctx, t, again); addr(r) != addr(results[0]) || r.Interfaces[2].Mac != results[0].Interfaces[2].Mac {
		t.Errorf("after a reload the container has %v, it had %v", r, results[0])
	}
	cluster.Seen(ctx, t, c.Outside, n.Addr, hostPort, c.OutsideAddr())
	for i, network := range networks {
		if err := network.check(ctx, calls[i]); err != nil {
			t.Errorf("CHECK of %s: %v", calls[i].IfName, err)
		}
	}
	networks[1].del(ctx, t, calls[0]) // eth0 is the other network's
	wantUsed(ctx, t, n, 3)
	for i, network := range networks {
		network.del(ctx, t, calls[i])
		hostEndGone(ctx, t, n, results[i])
		wantUsed(ctx, t, n, uint64(2-i))
	}
}

// crio asks for everything when it starts: versions, STATUS, GC with the pods
// it knows, CHECK of each; and makes a CHECK right after each ADD. A cache that
// was lost leaves the GC to the plugin.
func crio(ctx context.Context, t *testing.T, c *cluster.Cluster) {
	n := c.Nodes[0]
	runtime := newClient(t, n, "tenure", "1.1.0", "")
	var live []*libcni.RuntimeConf
	valid := &libcni.GCArgs{}
	for i := range 3 {
		rt := runtimeConf(fmt.Sprintf("crio%d", i), cluster.Sandbox(ctx, t, n, fmt.Sprintf("crio%d", i)).Path(), kubernetes("x")...)
		runtime.mustAdd(ctx, t, rt)
		if err := runtime.check(ctx, rt); err != nil {
			t.Errorf("CHECK right after ADD: %v", err)
		}
		if i > 0 { // the first is one that it forgot
			live = append(live, rt)
			valid.ValidAttachments = append(valid.ValidAttachments, types.GCAttachment{ContainerID: rt.ContainerID, IfName: rt.IfName})
		}
	}
	forgetful := newClient(t, n, "tenure", "1.1.0", "")
	for _, gc := range []struct {
		who  *client
		args *libcni.GCArgs
		left uint64
	}{
		{forgetful, nil, 3},              // neither list
		{forgetful, &libcni.GCArgs{}, 3}, // both null
		{forgetful, valid, 2},
		{runtime, valid, 2},
	} {
		if err := errors.Join(gc.who.version(ctx), gc.who.status(ctx), gc.who.gc(ctx, gc.args)); err != nil {
			t.Errorf("start: %v", err)
		}
		wantUsed(ctx, t, n, gc.left)
		for _, rt := range live {
			if err := runtime.check(ctx, rt); err != nil {
				t.Errorf("CHECK of %s: %v", rt.ContainerID, err)
			}
		}
	}
	if err := runtime.gc(ctx, nil); err != nil { // the cache names two, both to go
		t.Errorf("GC of everything: %v", err)
	}
}

// powerCut: the sandboxes of before are deleted again and again, without a
// namespace and without a result, before the daemon is up and after; then pods
// come under new ids, and the subnet is empty but for them.
func powerCut(ctx context.Context, t *testing.T, c *cluster.Cluster) {
	n := c.Nodes[0]
	runtime := newClient(t, n, "tenure", "1.1.0", "")
	var old []*libcni.RuntimeConf
	for i := range 3 {
		rt := runtimeConf(fmt.Sprintf("before%d", i), cluster.Sandbox(ctx, t, n, fmt.Sprintf("before%d", i)).Path(), kubernetes("b")...)
		runtime.mustAdd(ctx, t, rt)
		old = append(old, in("", rt))
	}
	if err := n.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	runtime = newClient(t, n, "tenure", "1.1.0", "")
	var notReady *types.Error
	if err := runtime.status(ctx); !errors.As(err, &notReady) || notReady.Code != api.CodeNotReady {
		t.Errorf("STATUS before the daemon is up: %v, want code 50", err)
	}
	delAll := func() {
		var g sync.WaitGroup
		for _, rt := range old {
			g.Go(func() { runtime.del(ctx, t, rt) })
		}
		g.Wait()
	}
	delAll()
	cluster.Start(ctx, t, n)
	delAll()
	box := cluster.Sandbox(ctx, t, n, "after")
	rt := runtimeConf("after", box.Path(), kubernetes("a")...)
	r := runtime.mustAdd(ctx, t, rt)
	delAll()
	wantUsed(ctx, t, n, 1)
	if err := errors.Join(runtime.status(ctx), runtime.check(ctx, rt), lab.WaitPing(ctx, n, addr(r))); err != nil {
		t.Errorf("the pod of after: %v", err)
	}
	runtime.del(ctx, t, rt)
}

// TestChain has tuning and portmap behind tenure, as runtimes call them in
// every version; tuning gives the interface another MAC, and changes the MTU.
func TestChain(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.New(ctx, t, cluster.Network, "n1")
	n := c.Nodes[0]
	for i, v := range versions() {
		t.Run(v, func(t *testing.T) {
			mac := fmt.Sprintf("02:00:5e:10:00:%02x", i)
			runtime := newClient(t, n, "tenure", v, fmt.Sprintf(`{"type":"tuning","dataDir":%q,"mac":%q,"mtu":1400,"sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"1"}},`, t.TempDir(), mac))
			box := cluster.Sandbox(ctx, t, n, fmt.Sprintf("chain%d", i))
			cluster.Serve(ctx, t, box.NS, port)
			rt := with(t, runtimeConf(fmt.Sprintf("chain%d", i), box.Path(), kubernetes("c")...),
				fmt.Sprintf(`{"portMappings":[{"hostPort":%d,"containerPort":%d,"protocol":"tcp"}]}`, hostPort, port))
			if err := runtime.version(ctx); err != nil {
				t.Errorf("VERSION: %v", err)
			}
			r := runtime.mustAdd(ctx, t, rt)
			if got := r.Interfaces[2]; got.Mac != mac || got.Sandbox != box.Path() || addr(r).Is6() || len(r.Routes) != 1 {
				t.Errorf("behind the chain the result is %v", r)
			}
			if link, err := cluster.FindLink(ctx, box, "eth0"); err != nil || link.MAC != mac || link.MTU != 1400 {
				t.Errorf("behind the chain the pod has %+v, %v", link, err)
			}
			cluster.Seen(ctx, t, c.Outside, n.Addr, hostPort, c.OutsideAddr())
			for verb, err := range map[string]error{"CHECK": runtime.check(ctx, rt), "STATUS": runtime.status(ctx)} {
				if err != nil && v != "0.3.1" { // there the library refuses a CHECK
					t.Errorf("%s: %v", verb, err)
				}
			}
			runtime.del(ctx, t, rt)
			runtime.del(ctx, t, rt)
			wantUsed(ctx, t, n, 0)
		})
	}
}
