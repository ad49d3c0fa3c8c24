package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestVersions makes every call in every version of the specification, each
// with what that version lets a runtime say.
func TestVersions(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.New(ctx, t, cluster.Network, "n1")
	n := c.Nodes[0]
	for _, v := range versions() {
		t.Run(v, func(t *testing.T) {
			speaker := &speaker{ctx: ctx, node: n, version: v}
			t.Run("verbs", speaker.verbs)
			t.Run("requests", speaker.requests)
			t.Run("behind another plugin", speaker.behind)
			t.Run("errors", speaker.errors)
		})
	}
	t.Run("STATUS of a hung daemon", func(t *testing.T) { hung(ctx, t, n) })
}

// speaker is a runtime that speaks one version.
type speaker struct {
	ctx     context.Context
	node    *lab.Node
	version string
}

// call makes a call about box with more members in the configuration. What a
// call must not print, it does not print in any case.
func (s *speaker) call(t *testing.T, verb string, box *lab.Pod, more string, change ...func(*lab.CNICall)) *lab.CNIAnswer {
	t.Helper()
	call := cluster.CallFor(verb, box, "eth0")
	call.Config = config(s.node, s.version, more)
	for _, c := range change {
		c(&call)
	}
	a := cluster.Call(s.ctx, t, s.node, call)
	if len(a.Stderr) != 0 {
		t.Errorf("%s wrote to standard error: %s", verb, a.Stderr)
	}
	if a.Exit == 0 && verb != "ADD" && len(a.Stdout) != 0 {
		t.Errorf("%s has nothing to say, and printed %s", verb, a.Stdout)
	}
	if a.Exit != 0 {
		s.isError(t, verb, a)
	}
	return a
}

// isError holds an error to the specification's form.
func (s *speaker) isError(t *testing.T, verb string, a *lab.CNIAnswer) {
	t.Helper()
	var e map[string]any
	if err := json.Unmarshal(a.Stdout, &e); err != nil {
		t.Errorf("%s failed with %q: %v", verb, a.Stdout, err)
		return
	}
	code, isNumber := e["code"].(float64)
	if version, _ := e["cniVersion"].(string); !slices.Contains(versions(), version) || !isNumber || code < 1 || e["msg"] == "" || e["msg"] == nil {
		t.Errorf("%s failed with %s, want cniVersion, code and msg", verb, a.Stdout)
	}
}

// can tells whether the version is that one or a later one.
func (s *speaker) can(since string) bool {
	return slices.Index(versions(), s.version) >= slices.Index(versions(), since)
}

// verbs walks through the life of an attachment. In a version that does not
// know a verb it is refused (code 1), and nothing is done.
func (s *speaker) verbs(t *testing.T) {
	box := cluster.Sandbox(s.ctx, t, s.node, "verbs-"+strings.ReplaceAll(s.version, ".", "-"))
	kept := fmt.Sprintf(`[{"containerID":%q,"ifname":"eth0"}]`, box.ContainerID())
	var added []byte
	for _, step := range []struct {
		verb, since, more string
		code              uint
		used              uint64 // afterwards
	}{
		{"STATUS", "1.1.0", "", 0, 0},
		{"DEL", "0.3.1", "", 0, 0},
		{"ADD", "0.3.1", "", 0, 1},
		{"ADD", "0.3.1", "", 0, 1},
		{"CHECK", "0.4.0", "PREV", 0, 1},
		{"GC", "1.1.0", `,"cni.dev/valid-attachments":` + kept, 0, 1},
		{"GC", "1.1.0", `,"cni.dev/attachments":` + kept, 0, 1},
		{"GC", "1.1.0", `,"cni.dev/valid-attachments":null,"cni.dev/attachments":null`, 0, 1},
		{"GC", "1.1.0", `,"cni.dev/valid-attachments":null,"cni.dev/attachments":[]`, 0, 0},
		{"ADD", "0.3.1", "", 0, 1},
		{"DEL", "0.4.0", "PREV", 0, 0},
		{"DEL", "0.3.1", "", 0, 0},
		{"CHECK", "0.4.0", "PREV", api.CodeCheckDiffers, 0},
		{"ADD", "0.3.1", "", 0, 1},
		{"GC", "1.1.0", `,"cni.dev/valid-attachments":[]`, 0, 0},
		{"DEL", "0.3.1", "", 0, 0},
	} {
		if step.verb == "DEL" && !s.can(step.since) {
			step.more = "" // prevResult came with 0.4.0
		}
		step.more = strings.Replace(step.more, "PREV", `,"prevResult":`+string(added), 1)
		a := s.call(t, step.verb, box, step.more)
		switch used := cluster.Status(s.ctx, t, s.node).Addresses.Used; {
		case step.verb != "DEL" && !s.can(step.since):
			if cluster.Code(a) != api.CodeIncompatibleVersion {
				t.Errorf("%s in %s: %v, want code 1", step.verb, s.version, a.Err)
			}
		case cluster.Code(a) != step.code:
			t.Errorf("%s with %q: %v, want code %d", step.verb, step.more, a.Err, step.code)
		case used != step.used:
			t.Errorf("after %s with %q %d addresses are in use, want %d", step.verb, step.more, used, step.used)
		case step.verb == "ADD":
			s.judge(t, box, a)
			added = a.Stdout
		}
	}
}

// answered is a result, with nothing beside what the versions know.
type answered struct {
	CNIVersion string         `json:"cniVersion"`
	DNS        map[string]any `json:"dns"`
	Interfaces []struct {
		Name, Mac, Sandbox string
		Mtu                int
	}
	IPs []struct {
		Version, Address, Gateway string
		Interface                 *int
	}
	Routes []struct{ Dst, Gw string }
}

// judge compares a result with the version and with the pod.
func (s *speaker) judge(t *testing.T, box *lab.Pod, a *lab.CNIAnswer) {
	t.Helper()
	var r answered
	dec := json.NewDecoder(strings.NewReader(string(a.Stdout)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&r); err != nil || dec.More() {
		t.Fatalf("result %s: %v", a.Stdout, err)
	}
	link, err := cluster.FindLink(s.ctx, box, "eth0")
	if err != nil {
		t.Fatal(err)
	}
	family := "4" // named by the versions before 1.0.0 only
	if s.can("1.0.0") {
		family = ""
	}
	if r.CNIVersion != s.version || len(r.Interfaces) != 3 || len(r.IPs) != 1 || len(r.Routes) != 1 {
		t.Fatalf("in version %s: %s", s.version, a.Stdout)
	}
	if ip, pod := r.IPs[0], r.Interfaces[2]; ip.Version != family || ip.Interface == nil || *ip.Interface != 2 ||
		!slices.Equal(link.Addrs, []string{ip.Address}) || r.Routes[0].Gw != ip.Gateway || r.Routes[0].Dst != "0.0.0.0/0" ||
		pod.Name != "eth0" || pod.Mac != link.MAC || pod.Sandbox != box.Path() {
		t.Errorf("the pod has %+v, the result is %s", link, a.Stdout)
	}
	if r.Interfaces[0].Name != cluster.Bridge || r.Interfaces[0].Sandbox != "" || r.Interfaces[1].Sandbox != "" {
		t.Errorf("bridge and host end in %s", a.Stdout)
	}
}

// requests are what a runtime asks for beyond an interface: by capabilities
// and in CNI_ARGS. What cannot be had is refused as a whole.
func (s *speaker) requests(t *testing.T) {
	subnet := netip.MustParsePrefix(cluster.Status(s.ctx, t, s.node).Subnet)
	want := host(subnet, 77).String()
	taken := cluster.Pod(s.ctx, t, s.node, "taken-"+strings.ReplaceAll(s.version, ".", "-"))
	const mac = "02:00:5e:10:00:07"
	box := cluster.Sandbox(s.ctx, t, s.node, "asks-"+strings.ReplaceAll(s.version, ".", "-"))
	for _, ask := range []struct {
		name, capabilities, args string
		mac                      string
		code                     uint
	}{
		{"ips", `{"ips":["` + want + `/24"]}`, "", "", 0},
		{"ips without a length, and a mac", `{"ips":["` + want + `"],"mac":"` + mac + `"}`, "", mac, 0},
		{"IP first", `{}`, "IP=" + want + ";IgnoreUnknown=1;K8S_POD_NAME=p", "", 0},
		{"IP last", `{"mac":"` + strings.ToUpper(mac) + `"}`, "K8S_POD_NAMESPACE=a;K8S_POD_NAME=p;IgnoreUnknown=true;IP=" + want, mac, 0},
		{"IP amid", `{}`, "K8S_POD_INFRA_CONTAINER_ID=1;IP=" + want + ";X=", "", 0},
		{"ips and IP are the same", `{"ips":["` + want + `/24"]}`, "IP=" + want, "", 0},
		{"others' capabilities", `{"ips":["` + want + `"],"portMappings":[{"HostPort":1}],"bandwidth":{"ingressRate":1},"dns":{"servers":[]},"io.kubernetes.cri.pod-annotations":{"a":"b"}}`, "", "", 0},
		{"ips and IP differ", `{"ips":["` + want + `/24"]}`, "IP=" + host(subnet, 78).String(), "", api.CodeAddressUnavailable},
		{"two of one family", `{"ips":["` + want + `/24","` + host(subnet, 78).String() + `/24"]}`, "", "", api.CodeAddressUnavailable},
		{"a family that is not here", `{"ips":["` + want + `","fd00::7/64"]}`, "", "", api.CodeAddressUnavailable},
		{"taken", `{}`, "IP=" + taken.IP.String(), "", api.CodeAddressUnavailable},
		{"gateway", `{"ips":["` + host(subnet, 1).String() + `/24"]}`, "", "", api.CodeAddressUnavailable},
		{"another node's", `{"ips":["10.6.0.7/24"]}`, "", "", api.CodeAddressUnavailable},
		{"no address", `{"ips":["` + want + `.1"]}`, "", "", api.CodeInvalidConfig},
		{"no address in CNI_ARGS", `{}`, "IP=here", "", api.CodeInvalidConfig},
		{"no mac", `{"mac":"02:00"}`, "", "", api.CodeInvalidConfig},
		{"a group's mac", `{"mac":"01:00:5e:00:00:01"}`, "", "", api.CodeInvalidConfig},
		{"ips no list", `{"ips":"` + want + `"}`, "", "", api.CodeDecode},
	} {
		t.Run(ask.name, func(t *testing.T) {
			defer func() {
				if a := s.call(t, "DEL", box, ""); a.Exit != 0 {
					t.Errorf("DEL: %v", a.Err)
				}
			}()
			a := s.call(t, "ADD", box, `,"runtimeConfig":`+ask.capabilities, func(c *lab.CNICall) { c.Args = ask.args })
			if cluster.Code(a) != ask.code {
				t.Fatalf("ADD: %v %s, want code %d", a.Err, a.Stdout, ask.code)
			}
			link, err := cluster.FindLink(s.ctx, box, "eth0")
			if (err == nil) != (ask.code == 0) {
				t.Fatalf("after code %d the pod has an interface: %v %v", ask.code, link, err)
			}
			if ask.code != 0 {
				wantUsed(s.ctx, t, s.node, 1)
				return
			}
			s.judge(t, box, a)
			if !slices.Equal(link.Addrs, []string{want + "/24"}) || ask.mac != "" && link.MAC != ask.mac {
				t.Errorf("the pod has %+v, want %s and mac %q", link, want, ask.mac)
			}
		})
	}
	if err := taken.Del(s.ctx); err != nil {
		t.Error(err)
	}
	wantUsed(s.ctx, t, s.node, 0)
}

// behind has another plugin ahead, whose result stays; the whole one serves a
// CHECK.
func (s *speaker) behind(t *testing.T) {
	box := cluster.Sandbox(s.ctx, t, s.node, "behind-"+strings.ReplaceAll(s.version, ".", "-"))
	family := `"version":"4",`
	if s.can("1.0.0") {
		family = ""
	}
	a := s.call(t, "ADD", box, fmt.Sprintf(`,"prevResult":{"cniVersion":%q,"interfaces":[{"name":"other0","sandbox":%q}],"ips":[{%s"address":"192.0.2.7/24","interface":0}]}`,
		s.version, box.Path(), family))
	r := cluster.Result(t, a)
	if len(r.Interfaces) != 4 || r.Interfaces[0].Name != "other0" || len(r.IPs) != 2 || *r.IPs[0].Interface != 0 || *r.IPs[1].Interface != 3 {
		t.Errorf("behind another plugin the result is %s", a.Stdout)
	}
	if a := s.call(t, "CHECK", box, `,"prevResult":`+string(a.Stdout)); s.can("0.4.0") && a.Exit != 0 {
		t.Errorf("CHECK: %v", a.Err)
	}
	if a := s.call(t, "DEL", box, ""); a.Exit != 0 {
		t.Errorf("DEL: %v", a.Err)
	}
}

// errors are the specification's, and Tenure's own, of calls that cannot be
// served; nothing is done then.
func (s *speaker) errors(t *testing.T) {
	box := cluster.Sandbox(s.ctx, t, s.node, "errors-"+strings.ReplaceAll(s.version, ".", "-"))
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	netns := func(path string) func(*lab.CNICall) { return func(c *lab.CNICall) { c.Netns = path } }
	ifName := func(name string) func(*lab.CNICall) { return func(c *lab.CNICall) { c.IfName = name } }
	for _, e := range []struct {
		name, more string
		change     func(*lab.CNICall)
		code       uint
	}{
		{"namespace missing", "", netns(box.Path() + "-gone"), api.CodeNamespace},
		{"a file, no namespace", "", netns(file), api.CodeNamespace},
		{"the node's own namespace", "", netns(s.node.Path()), api.CodeNamespace},
		{"no namespace named", "", netns(""), api.CodeInvalidEnvironment},
		{"interface exists", "", ifName("lo"), api.CodeInterfaceExists},
		{"no interface named", "", ifName(""), api.CodeInvalidEnvironment},
		{"prevResult of no form", `,"prevResult":"x"`, ifName("eth0"), api.CodeDecode},
		{"capabilities of no form", `,"runtimeConfig":7`, ifName("eth0"), api.CodeDecode},
	} {
		t.Run(e.name, func(t *testing.T) {
			if a := s.call(t, "ADD", box, e.more, e.change); cluster.Code(a) != e.code {
				t.Errorf("ADD: %v %s, want code %d", a.Err, a.Stdout, e.code)
			}
			wantUsed(s.ctx, t, s.node, 0)
			// Whatever made the ADD fail, the DEL that follows it does not.
			if e.code == api.CodeInvalidEnvironment {
				e.change = ifName("eth0")
			}
			if a := s.call(t, "DEL", box, e.more, e.change); a.Exit != 0 {
				t.Errorf("DEL: %v", a.Err)
			}
		})
	}
}

// hung stops the daemon for good: STATUS says 50 within its second, also when
// many ask at once. The machine may be busy: the quickest counts.
func hung(ctx context.Context, t *testing.T, n *lab.Node) {
	signal(t, n, unix.SIGSTOP)
	defer signal(t, n, unix.SIGCONT)
	quickest := time.Hour
	for range 3 {
		began := time.Now()
		a := cluster.Call(ctx, t, n, lab.CNICall{Verb: "STATUS"})
		quickest = min(quickest, time.Since(began))
		if cluster.Code(a) != api.CodeNotReady || len(a.Stderr) != 0 {
			t.Errorf("STATUS of a hung daemon: %v %s, want code 50", a.Err, a.Stderr)
		}
	}
	if quickest > time.Second {
		t.Errorf("STATUS of a hung daemon took %s", quickest)
	}
}

// host is the subnet's address of that number.
func host(subnet netip.Prefix, number byte) netip.Addr {
	a := subnet.Addr().As4()
	a[3] = number
	return netip.AddrFrom4(a)
}
