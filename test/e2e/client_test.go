package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// client is a runtime: the CNI library with a network, and with a cache of
// what it has added.
type client struct {
	node *lab.Node
	cni  *libcni.CNIConfig
	list *libcni.NetworkConfigList
}

// newClient speaks one version; chained are plugins behind tenure and before
// portmap, each with a comma after it.
func newClient(t *testing.T, n *lab.Node, network, version, chained string) *client {
	t.Helper()
	bin, err := lab.FindBin()
	if err != nil {
		t.Fatal(err)
	}
	list, err := libcni.NetworkConfFromBytes(fmt.Appendf(nil, `{"cniVersion":%q,"name":%q,"plugins":[
		{"type":"tenure","capabilities":{"ips":true,"mac":true},"tenure":{"socket":%q}},
		%s{"type":"portmap","capabilities":{"portMappings":true}}]}`, version, network, n.Socket, chained))
	if err != nil {
		t.Fatal(err)
	}
	run := &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: os.Stderr}}
	return &client{node: n, list: list,
		cni: libcni.NewCNIConfigWithCacheDir([]string{bin, filepath.Join(bin, "tools")}, t.TempDir(), run)}
}

// add adds a pod and returns the result in the newest form.
func (c *client) add(ctx context.Context, rt *libcni.RuntimeConf) (*types100.Result, error) {
	var r *types100.Result
	err := c.node.Do(func() error {
		answer, err := c.cni.AddNetworkList(ctx, c.list, rt)
		if err != nil {
			return err
		}
		if answer.Version() != c.list.CNIVersion {
			return fmt.Errorf("the result's version is %s, want %s", answer.Version(), c.list.CNIVersion)
		}
		r, err = types100.NewResultFromResult(answer)
		return err
	})
	return r, err
}

// mustAdd is add of what has to succeed, with one address.
func (c *client) mustAdd(ctx context.Context, t *testing.T, rt *libcni.RuntimeConf) *types100.Result {
	t.Helper()
	r, err := c.add(ctx, rt)
	if err != nil || len(r.IPs) != 1 {
		t.Fatalf("ADD of %s %s: %v %v", rt.ContainerID, rt.IfName, r, err)
	}
	return r
}

// del makes the DEL of a pod's end, with the result if that is in the cache.
func (c *client) del(ctx context.Context, t *testing.T, rt *libcni.RuntimeConf) {
	t.Helper()
	if err := c.node.Do(func() error { return c.cni.DelNetworkList(ctx, c.list, rt) }); err != nil {
		t.Errorf("DEL of %s %s in %q: %v", rt.ContainerID, rt.IfName, rt.NetNS, err)
	}
}

func (c *client) check(ctx context.Context, rt *libcni.RuntimeConf) error {
	return c.node.Do(func() error { return c.cni.CheckNetworkList(ctx, c.list, rt) })
}

func (c *client) status(ctx context.Context) error {
	return c.node.Do(func() error { return c.cni.GetStatusNetworkList(ctx, c.list) })
}

func (c *client) gc(ctx context.Context, args *libcni.GCArgs) error {
	return c.node.Do(func() error { return c.cni.GCNetworkList(ctx, c.list, args) })
}

// version asks every plugin for its versions, with the library's dummies for
// namespace, interface and path.
func (c *client) version(ctx context.Context) error {
	return c.node.Do(func() error {
		_, err := c.cni.ValidateNetworkList(ctx, c.list)
		return err
	})
}

// runtimeConf is a call about eth0 of the pod.
func runtimeConf(id, netns string, args ...[2]string) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: id, NetNS: netns, IfName: "eth0", Args: args}
}

// with is the call with capabilities, given as JSON: the keys' case is the
// runtime's.
func with(t *testing.T, rt *libcni.RuntimeConf, capabilities string) *libcni.RuntimeConf {
	t.Helper()
	if err := json.Unmarshal([]byte(capabilities), &rt.CapabilityArgs); err != nil {
		t.Fatal(err)
	}
	return rt
}

// in is the same call with another namespace.
func in(netns string, rt *libcni.RuntimeConf) *libcni.RuntimeConf {
	other := *rt
	other.NetNS = netns
	return &other
}

// process runs in the pod's namespace until the test ends, and returns the path
// by which runtimes without named namespaces know it.
func process(t *testing.T, box *lab.Pod) (netns string, end func()) {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	if err := box.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	ended := false
	end = func() {
		if !ended {
			ended = true
			_ = cmd.Process.Signal(os.Kill)
			_ = cmd.Wait()
		}
	}
	t.Cleanup(end)
	return fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid), end
}

// hostEndGone makes sure that the host's end of a pod's interface has gone.
func hostEndGone(ctx context.Context, t *testing.T, n *lab.Node, r *types100.Result) {
	t.Helper()
	if _, err := cluster.FindLink(ctx, n, r.Interfaces[1].Name); err == nil {
		t.Errorf("the pod's interface %s is still there", r.Interfaces[1].Name)
	}
}
