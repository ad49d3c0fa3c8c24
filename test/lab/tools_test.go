package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"
)

// newToolLab makes a lab that can run the helpers built by "make tools".
func newToolLab(t *testing.T) (*Lab, context.Context) {
	t.Helper()
	bin, err := FindBin()
	if err != nil {
		t.Fatal(err)
	}
	return newLab(t, Options{Bin: bin})
}

func TestEtcd(t *testing.T) {
	l, ctx := newToolLab(t)
	e, err := l.StartEtcd(ctx)
	if err != nil {
		t.Fatal(err)
	}
	n := addNode(ctx, t, l, "n1")
	put(ctx, t, n.NS, e, "a") // through the LAN, as a daemon would
	backup, err := e.Backup(ctx)
	if err != nil {
		t.Fatal(err)
	}
	put(ctx, t, n.NS, e, "b")
	first, rev := headerOf(ctx, t, e)

	if err := e.Restore(ctx, backup); err != nil {
		t.Fatal(err)
	}
	cluster, back := headerOf(ctx, t, e)
	if keys := keysOf(ctx, t, e); keys != "a" || cluster != first || back >= rev {
		t.Errorf("restored: keys %q, cluster %x revision %d, want a, %x, less than %d", keys, cluster, back, first, rev)
	}
	if err := e.Wipe(ctx, false); err != nil {
		t.Fatal(err)
	}
	if cluster, _ := headerOf(ctx, t, e); cluster != first || keysOf(ctx, t, e) != "" {
		t.Errorf("wiped: cluster %x, want the same %x without keys", cluster, first)
	}
	if err := e.Wipe(ctx, true); err != nil {
		t.Fatal(err)
	}
	if cluster, _ := headerOf(ctx, t, e); cluster == first {
		t.Errorf("wiped anew: cluster %x is the old one", cluster)
	}
	if err := e.Stop(ctx); err != nil {
		t.Errorf("stop: %v", err)
	}
}

// TestEtcdClusterKeepsItsQuorum: of three members one may die and come back,
// and one may hang and go on; with two away nothing can be written.
func TestEtcdClusterKeepsItsQuorum(t *testing.T) {
	l, ctx := newToolLab(t)
	e, err := l.StartEtcdCluster(ctx, 3)
	if err != nil {
		t.Fatal(err)
	}
	n := addNode(ctx, t, l, "n1")
	if flags := strings.Join(n.flags(nil), " "); !strings.Contains(flags, "--etcd-endpoints="+strings.Join(e.URLs(), ",")) {
		t.Errorf("a node gets %s", flags)
	}
	c, err := n.EtcdClient(e.URLs()...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	write := func(what string) {
		t.Helper()
		if err := Eventually(ctx, "a write with "+what, func() error { return putOnce(ctx, c) }); err != nil {
			t.Fatal(err)
		}
	}
	write("all members")
	killed, hung := e.Members[0], e.Members[1]
	killed.Kill()
	write("one member dead")
	if err := killed.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if err := hung.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	write("one member hung")
	killed.Kill()
	short, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := Eventually(short, "a write without a majority", func() error { return putOnce(short, c) }); err == nil {
		t.Error("one member of three took a write")
	}
	if err := hung.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	write("the hung member back")
	if err := killed.Start(ctx); err != nil {
		t.Fatal(err)
	}
	checkMembers(ctx, t, e)
	if err := errors.Join(e.Members[0].Wipe(ctx, false), e.Members[1].Restore(ctx, t.TempDir())); err == nil || strings.Count(err.Error(), "of 3 members") != 2 {
		t.Errorf("wiping and restoring one member of three: %v", err)
	}
	if err := e.Members[2].Stop(ctx); err != nil {
		t.Error(err)
	}
}

// checkMembers makes sure that every member stands in one cluster and has all
// that was written.
func checkMembers(ctx context.Context, t *testing.T, e *EtcdCluster) {
	t.Helper()
	cluster, revision := headerOf(ctx, t, e.Members[0])
	for _, m := range e.Members[1:] {
		if c, r := headerOf(ctx, t, m); c != cluster || r != revision {
			t.Errorf("%s: cluster %x revision %d, the first has %x and %d", m.host, c, r, cluster, revision)
		}
	}
}

// putOnce tries one write for a second.
func putOnce(ctx context.Context, c *clientv3.Client) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err := c.Put(ctx, "quorum", "x")
	return err
}

func put(ctx context.Context, t *testing.T, from *NS, e *Etcd, key string) {
	t.Helper()
	c, err := from.EtcdClient(e.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if err := Eventually(ctx, "put "+key, func() error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := c.Put(ctx, key, "x")
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

func headerOf(ctx context.Context, t *testing.T, e *Etcd) (cluster uint64, revision int64) {
	t.Helper()
	c, err := e.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	resp, err := c.Get(ctx, "any")
	if err != nil {
		t.Fatal(err)
	}
	return resp.Header.ClusterId, resp.Header.Revision
}

func keysOf(ctx context.Context, t *testing.T, e *Etcd) string {
	t.Helper()
	out, err := e.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = out.Close() }()
	var keys []string
	for _, key := range []string{"a", "b"} {
		resp, err := out.Get(ctx, key)
		if err != nil {
			t.Fatal(err)
		}
		if resp.Count > 0 {
			keys = append(keys, key)
		}
	}
	return strings.Join(keys, " ")
}

// reference is a network of the reference plugins, for trying the lab's own
// side of CNI without the product.
const reference = `{"cniVersion":"1.0.0","name":"ref","plugins":[
 {"type":"bridge","bridge":"cni0","isGateway":true,"ipMasq":true,"ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.5.9.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}},
 {"type":"portmap","capabilities":{"portMappings":true}}]}`

func TestPodsThroughCNITool(t *testing.T) {
	l, ctx := newToolLab(t)
	n := addNode(ctx, t, l, "n1")
	conf := fmt.Sprintf(reference, filepath.Join(n.StateDir, "host-local"))
	if err := os.WriteFile(filepath.Join(n.CNIDir, "20-ref.conflist"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	pod, err := n.AddPod(ctx, "a", PodOptions{Network: "ref", PortMappings: []PortMapping{{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"}}})
	if err != nil {
		t.Fatal(err)
	}
	if pod.IP.String() != "10.5.9.2" || pod.Result == nil {
		t.Errorf("pod has %s", pod.IP)
	}
	if err := WaitPing(ctx, pod, l.OutsideAddr()); err != nil {
		t.Error(err)
	}
	serveHello(ctx, t, pod.NS, ":80")
	if err := Eventually(ctx, "mapped port from outside", func() error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		return readHello(ctx, l.Outside, n.Addr.String()+":8080")
	}); err != nil {
		t.Error(err)
	}
	if err := pod.Check(ctx); err != nil {
		t.Error(err)
	}
	if !exists(filepath.Join(n.varLib(), "cni", "results", "ref-"+pod.ContainerID()+"-eth0")) {
		t.Error("the result is not in the node's own cache")
	}
	if err := pod.Del(ctx); err != nil {
		t.Error(err)
	}
	if exists(pod.Path()) {
		t.Error("Del left the namespace")
	}
}

func TestFailedAddLeavesNoNamespace(t *testing.T) {
	l, ctx := newToolLab(t)
	n := addNode(ctx, t, l, "n1")
	if _, err := n.AddPod(ctx, "a", PodOptions{Network: "absent"}); err == nil {
		t.Error("ADD to a network that is not configured succeeded")
	}
	if names, _ := filepath.Glob(filepath.Join(netnsDir, n.podPrefix()+"*")); len(names) > 0 {
		t.Errorf("left: %v", names)
	}
}

func TestRawCNICall(t *testing.T) {
	l, ctx := newToolLab(t)
	n := addNode(ctx, t, l, "n1")
	a, err := n.CNI(ctx, CNICall{Plugin: "tools/host-local", Verb: "VERSION"})
	if err != nil || a.Exit != 0 || !strings.Contains(string(a.Stdout), "supportedVersions") {
		t.Errorf("VERSION: %+v, %v", a, err)
	}
	a, err = n.CNI(ctx, CNICall{Plugin: "tools/host-local", Verb: "ADD", ContainerID: "c"})
	if err != nil || a.Exit == 0 || a.Err == nil || a.Err.Code != 4 {
		t.Errorf("ADD without namespace: %+v, %v, want code 4", a, err)
	}
}
