package field

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestH8 is calico #7554, calico/cni-plugin #275 and kata-tests #1941: the
// host's ends stay where the file of a namespace is gone but something holds
// the namespace, thousands of them in the end, and an ADD that comes to such a
// name fails with "file exists". Right is: DEL deletes the host's end itself.
// An orphan of ours under the very name that an ADD will use is replaced. What
// is not ours is left alone, and the ADD says so; the interface of a living pod
// above all, whatever it is called.
func TestH8(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.New(ctx, t, cluster.Network, "n1")
	n := c.Nodes[0]
	t.Run("held namespace", func(t *testing.T) { heldNamespace(ctx, t, n) })
	t.Run("orphan", func(t *testing.T) {
		for name, alias := range map[string]bool{"whole": true, "half made": false} {
			t.Run(name, func(t *testing.T) { orphan(ctx, t, n, alias) })
		}
	})
	t.Run("stranger", func(t *testing.T) { stranger(ctx, t, n) })
	t.Run("living pod", func(t *testing.T) { renamedPod(ctx, t, n) })
	used(ctx, t, n, 0)
}

// heldNamespace deletes a pod whose namespace a process keeps.
func heldNamespace(ctx context.Context, t *testing.T, n *lab.Node) {
	pod := cluster.Pod(ctx, t, n, "held")
	held, err := os.Open(pod.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Close() }()
	vanish(t, pod)
	host := pod.Result.Interfaces[1].Name
	if !linkThere(ctx, n, host) {
		t.Fatalf("%s has gone with the file: nothing is tried here", host)
	}
	deletes(ctx, t, n, pod)
	if linkThere(ctx, n, host) {
		t.Errorf("after DEL %s is there", host)
	}
	inside := cluster.Exec(ctx, t, n, "nsenter", fmt.Sprintf("--net=/proc/%d/fd/%d", os.Getpid(), held.Fd()), "ip", "-o", "link")
	if strings.Contains(inside, "eth0") {
		t.Errorf("the namespace has still\n%s", inside)
	}
	used(ctx, t, n, 0)
}

// orphan puts a veth in the place of the host's end of the next ADD: one that
// is marked as ours, by its MAC alone where a daemon died before the rest.
func orphan(ctx context.Context, t *testing.T, n *lab.Node, alias bool) {
	box := cluster.Sandbox(ctx, t, n, "orphan")
	host := hostEnd(ctx, t, n, box)
	text := linkOf(ctx, t, n, host.Name).Alias
	deletes(ctx, t, n, box)
	veth(ctx, t, n, host.Name, host.Mac)
	if alias {
		cluster.Exec(ctx, t, n, "ip", "link", "set", host.Name, "alias", text)
	}
	was := linkOf(ctx, t, n, host.Name)
	if again := hostEnd(ctx, t, n, box); again.Name != host.Name {
		t.Errorf("the host's end is %s, it was %s", again.Name, host.Name)
	}
	if now := linkOf(ctx, t, n, host.Name); now.Index == was.Index || now.Alias == "" {
		t.Errorf("the orphan %+v is there: %+v", was, now)
	}
	if linkThere(ctx, n, "peer0") {
		t.Error("the orphan's other end is there")
	}
	if a := cluster.Call(ctx, t, n, cluster.CallFor("CHECK", box, "eth0")); a.Exit != 0 {
		t.Errorf("CHECK: %v", a.Err)
	}
	deletes(ctx, t, n, box)
	vanish(t, box)
}

// stranger puts one there that nothing marks as ours.
func stranger(ctx context.Context, t *testing.T, n *lab.Node) {
	box := cluster.Sandbox(ctx, t, n, "stranger")
	host := hostEnd(ctx, t, n, box)
	deletes(ctx, t, n, box)
	veth(ctx, t, n, host.Name, "02:00:00:00:00:99")
	refuses(ctx, t, n, box, host.Name)
	cluster.Exec(ctx, t, n, "ip", "link", "del", host.Name)
	hostEnd(ctx, t, n, box)
	deletes(ctx, t, n, box)
}

// renamedPod gives the interface of a living pod the name that the ADD of
// another one will use.
func renamedPod(ctx context.Context, t *testing.T, n *lab.Node) {
	alive, box := cluster.Pod(ctx, t, n, "alive"), cluster.Sandbox(ctx, t, n, "late")
	name := alive.Result.Interfaces[1].Name
	host := hostEnd(ctx, t, n, box)
	deletes(ctx, t, n, box)
	rename := func(from, to string) {
		t.Helper()
		cluster.Exec(ctx, t, n, "ip", "link", "set", from, "down")
		cluster.Exec(ctx, t, n, "ip", "link", "set", from, "name", to, "up")
	}
	rename(name, host.Name)
	refuses(ctx, t, n, box, host.Name)
	if err := lab.WaitPing(ctx, n, alive.IP); err != nil {
		t.Error(err)
	}
	rename(host.Name, name)
	if err := alive.Check(ctx); err != nil {
		t.Errorf("CHECK of the living pod: %v", err)
	}
	hostEnd(ctx, t, n, box)
	deletes(ctx, t, n, box)
	deletes(ctx, t, n, alive)
}

// refuses makes sure that neither ADD nor the DEL that follows touches what
// bears the name, and that no address is used for it.
func refuses(ctx context.Context, t *testing.T, n *lab.Node, box *lab.Pod, name string) {
	t.Helper()
	was, before := linkOf(ctx, t, n, name), cluster.Status(ctx, t, n).Addresses.Used
	a := cluster.Call(ctx, t, n, cluster.CallFor("ADD", box, "eth0"))
	if cluster.Code(a) != api.CodeInterfaceExists || !strings.Contains(a.Err.Msg, name) {
		t.Errorf("ADD where %s is another's: %v, want code %d and its name", name, a.Err, api.CodeInterfaceExists)
	}
	used(ctx, t, n, before)
	deletes(ctx, t, n, box)
	if now := linkOf(ctx, t, n, name); now != was {
		t.Errorf("%s is %+v, it was %+v", name, now, was)
	}
}

// hostEnd adds the box and returns what the result says of the host's end.
func hostEnd(ctx context.Context, t *testing.T, n *lab.Node, box *lab.Pod) *types100.Interface {
	t.Helper()
	return cluster.Result(t, cluster.Call(ctx, t, n, cluster.CallFor("ADD", box, "eth0"))).Interfaces[1]
}

func deletes(ctx context.Context, t *testing.T, n *lab.Node, box *lab.Pod) {
	t.Helper()
	if a := cluster.Call(ctx, t, n, cluster.CallFor("DEL", box, "eth0")); a.Exit != 0 {
		t.Errorf("DEL of %s: %v", box.Pod, a.Err)
	}
}

func veth(ctx context.Context, t *testing.T, n *lab.Node, name, mac string) {
	t.Helper()
	cluster.Exec(ctx, t, n, "ip", "link", "add", name, "address", mac, "type", "veth", "peer", "name", "peer0")
}

// link is what tells one device from another under the same name.
type link struct {
	Index int    `json:"ifindex"`
	MAC   string `json:"address"`
	Alias string `json:"ifalias"`
}

func linkOf(ctx context.Context, t *testing.T, n *lab.Node, name string) link {
	t.Helper()
	var all []link
	if err := json.Unmarshal([]byte(cluster.Exec(ctx, t, n, "ip", "-j", "link", "show", "dev", name)), &all); err != nil || len(all) != 1 {
		t.Fatalf("link %s: %v, %v", name, all, err)
	}
	return all[0]
}
