package field

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestF12 is ovs-cni #106, kubernetes #44307 and cni #155: odd or missing
// parameters make a plugin panic, or blame an interface that already exists.
// Right is: an error object with the right code, no panic, no file anywhere
// else, no address used; and an interface of that name that was in the
// namespace before stays as it is.
func TestF12(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.New(ctx, t, cluster.Network, "n1")
	n := c.Nodes[0]
	box := cluster.Sandbox(ctx, t, n, "box")
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := cluster.Pod(ctx, t, n, "first").Del(ctx); err != nil { // what a daemon writes is there by then
		t.Fatal(err)
	}
	before := files(t, c.Dir())

	for name, odd := range map[string]struct {
		spoil func(*lab.CNICall)
		codes []uint
	}{
		"no command":          {func(c *lab.CNICall) { c.Verb = "" }, []uint{4}},
		"unknown command":     {func(c *lab.CNICall) { c.Verb = "FROB" }, []uint{4}},
		"no id":               {func(c *lab.CNICall) { c.ContainerID = "" }, []uint{4}},
		"empty id":            {func(c *lab.CNICall) { c.ContainerID = ""; c.Env = []string{"CNI_CONTAINERID="} }, []uint{4}},
		"id of a path":        {func(c *lab.CNICall) { c.ContainerID = "../../etc/x" }, []uint{4}},
		"id of 200 bytes":     {func(c *lab.CNICall) { c.ContainerID = strings.Repeat("a", 200) }, []uint{4}},
		"no ifname":           {func(c *lab.CNICall) { c.IfName = "" }, []uint{4}},
		"ifname of 16 bytes":  {func(c *lab.CNICall) { c.IfName = "abcdefghijklmnop" }, []uint{4}},
		"ifname of a path":    {func(c *lab.CNICall) { c.IfName = "../eth0" }, []uint{4}},
		"ifname of a pattern": {func(c *lab.CNICall) { c.IfName = "eth%d" }, []uint{4}},
		"no namespace":        {func(c *lab.CNICall) { c.Netns = "" }, []uint{4}},
		"missing namespace":   {func(c *lab.CNICall) { c.Netns = "/run/netns/does-not-exist" }, []uint{api.CodeNamespace}},
		"no such namespace":   {func(c *lab.CNICall) { c.Netns = file }, []uint{api.CodeNamespace}},
		"the node itself":     {func(c *lab.CNICall) { c.Netns = n.Path() }, []uint{api.CodeNamespace}},
		"long namespace":      {func(c *lab.CNICall) { c.Netns = "/" + strings.Repeat("a", 5000) }, []uint{4}},
		"empty stdin":         {func(c *lab.CNICall) { c.Config = []byte{} }, []uint{6}},
		"garbage on stdin":    {func(c *lab.CNICall) { c.Config = []byte("\x00\xff{") }, []uint{6}},
		"a list on stdin":     {func(c *lab.CNICall) { c.Config = []byte(`[1]`) }, []uint{6}},
		"no name":             {edit(n, `"name":"tenure",`, ``), []uint{7}},
		"a name of a path":    {edit(n, `"name":"tenure"`, `"name":"../x"`), []uint{7}},
		"unknown version":     {edit(n, `"cniVersion":"1.1.0"`, `"cniVersion":"9.9.9"`), []uint{1}},
		"version of no kind":  {edit(n, `"cniVersion":"1.1.0"`, `"cniVersion":7`), []uint{6, 1}},
		"unknown setting":     {edit(n, `"socket"`, `"sockets"`), []uint{7}},
		"relative socket":     {edit(n, n.Socket, `tenured.sock`), []uint{7}},
		"odd address":         {func(c *lab.CNICall) { c.Args = "IP=10.5.300.1" }, []uint{7}},
		"foreign address":     {func(c *lab.CNICall) { c.Args = "IP=192.0.2.200" }, []uint{api.CodeAddressUnavailable}},
	} {
		t.Run(name, func(t *testing.T) {
			call := cluster.CallFor("ADD", box, "eth0")
			odd.spoil(&call)
			wellFormed(t, cluster.Call(ctx, t, n, call), odd.codes)
			used(ctx, t, n, 0)
			if call.Config == nil && call.Verb == "ADD" {
				otherVerbs(ctx, t, n, call, odd.codes)
			}
		})
	}
	t.Run("existing interface", func(t *testing.T) { existing(ctx, t, n, box) })
	if after := files(t, c.Dir()); !slices.Equal(after, before) {
		t.Errorf("files are\n%v, they were\n%v", after, before)
	}
	// After all that the daemon serves as ever.
	cluster.Result(t, cluster.Call(ctx, t, n, cluster.CallFor("ADD", box, "net1")))
}

// otherVerbs has the same odd parameters: what makes no sense is refused, and
// an odd namespace is a pod's that is gone.
func otherVerbs(ctx context.Context, t *testing.T, n *lab.Node, call lab.CNICall, codes []uint) {
	t.Helper()
	for _, verb := range []string{"DEL", "CHECK"} {
		call.Verb = verb
		a := cluster.Call(ctx, t, n, call)
		if a.Exit == 0 && verb == "DEL" {
			if said := append(a.Stdout, a.Stderr...); len(said) > 0 {
				t.Errorf("%s says %s", verb, said)
			}
			continue
		}
		// Who was never added is missed before his namespace is looked at.
		wellFormed(t, a, append(codes, api.CodeCheckDiffers))
	}
}

// edit replaces a part of the configuration.
func edit(n *lab.Node, old, by string) func(*lab.CNICall) {
	return func(c *lab.CNICall) {
		whole := fmt.Sprintf(`{"cniVersion":"1.1.0","name":"tenure","type":"tenure","tenure":{"socket":%q}}`, n.Socket)
		c.Config = []byte(strings.Replace(whole, old, by, 1))
	}
}

// wellFormed makes sure that the answer is an error object of the
// specification, and nothing else.
func wellFormed(t *testing.T, a *lab.CNIAnswer, codes []uint) {
	t.Helper()
	var e struct {
		CNIVersion string `json:"cniVersion"`
		Code       uint   `json:"code"`
		Msg        string `json:"msg"`
	}
	d := json.NewDecoder(bytes.NewReader(a.Stdout))
	if err := d.Decode(&e); err != nil || a.Exit != 1 || e.CNIVersion == "" || e.Msg == "" || !slices.Contains(codes, e.Code) {
		t.Errorf("exit code %d, answer %s (%v), want code %v", a.Exit, a.Stdout, err, codes)
	}
	if rest := bytes.TrimSpace(append(a.Stdout[d.InputOffset():], a.Stderr...)); len(rest) > 0 {
		t.Errorf("more output: %s", rest)
	}
}

// existing puts an interface of that name into the namespace first.
func existing(ctx context.Context, t *testing.T, n *lab.Node, box *lab.Pod) {
	cluster.Exec(ctx, t, box, "ip", "link", "add", "eth0", "type", "bridge")
	cluster.Exec(ctx, t, box, "ip", "addr", "add", "198.51.100.77/24", "dev", "eth0")
	cluster.Exec(ctx, t, box, "ip", "link", "set", "eth0", "up")
	const look = "ip -d addr show dev eth0"
	words := strings.Fields(look)
	was := cluster.Exec(ctx, t, box, words[0], words[1:]...)
	for _, verb := range []string{"ADD", "DEL"} {
		a := cluster.Call(ctx, t, n, cluster.CallFor(verb, box, "eth0"))
		if verb == "ADD" {
			wellFormed(t, a, []uint{api.CodeInterfaceExists})
		} else if a.Exit != 0 {
			t.Errorf("DEL: %v", a.Err)
		}
		used(ctx, t, n, 0)
		if now := cluster.Exec(ctx, t, box, words[0], words[1:]...); stable(now) != stable(was) {
			t.Errorf("after %s the interface is\n%s, it was\n%s", verb, now, was)
		}
	}
}

// stable leaves out a bridge's timers, which run.
func stable(text string) string {
	words := strings.Fields(text)
	words = slices.DeleteFunc(words, func(w string) bool { return strings.Contains(w, ".") && !strings.Contains(w, "/") })
	return strings.Join(words, " ")
}

// files lists what is under a directory, but for the logs.
func files(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err == nil && e.IsDir() && e.Name() == "etcd" {
			return filepath.SkipDir
		}
		all = append(all, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
