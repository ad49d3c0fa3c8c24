package conf

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/containernetworking/cni/pkg/types"
)

// told is an error of type Faults, each of which names its place, in a text of
// bounded length that a terminal can show.
func told(t *testing.T, err error) {
	t.Helper()
	var faults Faults
	if !errors.As(err, &faults) || len(faults) == 0 {
		t.Fatalf("%T %v is not Faults", err, err)
	}
	for _, f := range faults {
		if f.Field == "" || f.Text == "" {
			t.Errorf("%q has no place or no text", f)
		}
	}
	hidden := func(r rune) bool { return !unicode.IsPrint(r) }
	if text := err.Error(); len(text) > 10_000 || !utf8.ValidString(text) || strings.ContainsFunc(text, hidden) {
		t.Errorf("%d bytes: %.1000q", len(text), text)
	}
}

// names says that an error names a field.
func names(err error, field string) bool {
	var faults Faults
	return errors.As(err, &faults) && slices.ContainsFunc(faults, func(f Fault) bool { return f.Field == field })
}

// with is a JSON object that has one more member, behind the others.
func with(object []byte, member string) []byte {
	inner, _ := bytes.CutSuffix(bytes.TrimSpace(object), []byte("}"))
	if !bytes.HasSuffix(bytes.TrimSpace(inner), []byte("{")) {
		inner = append(bytes.Clone(inner), ',')
	}
	return append(append(bytes.Clone(inner), member...), '}')
}

// FuzzParseNetwork: what is accepted is a network with subnets, is the same once
// written and read again, and would not be accepted with a field that nobody knows.
func FuzzParseNetwork(f *testing.F) {
	for _, seed := range []string{
		`{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}`, `{"Network":"10.5.0.0/16","SubnetMin":"10.5.1.0"}`,
		`{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00::/8","IPv6SubnetLen":70}`,
		`{"Network":"10.5.0.0/16","Backend":{"Type":null,"VNI":-1}}`, `{`, `null`, `{"a":{"a":[`, `{}`,
		`{"Network":"10.5.0.0/16","SubnetLen":26,"SubnetMin":"10.5.4.0","SubnetMax":"10.5.99.192","LeaseTTL":"1h30m","Backend":{"Type":"vxlan","VNI":7,"Port":4789,"MTU":1400,"DirectRouting":true}}`,
		`{"network":"10.0.0.0/8","enableipv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"host-gw"}}`,
		`{"Network":"10.5.0.0/16","EnableNFTables":false,"IPv6SubnetMin":"","Backend":{"Type":"vxlan","GBP":true,"Learning":true,"MacPrefix":"0E-2A"}}`,
		`{"Network":"10.5.0.0/16","LeaseTTL":"` + strings.Repeat("9", 400) + `h"}`, `{"` + strings.Repeat("x", 2000) + `":1}`, `[` + strings.Repeat("1,", 2000) + `1]`,
		`{"Network":{"` + strings.Repeat("\t", 900) + `":1}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		n, _, err := ParseNetwork(b)
		if err != nil {
			told(t, err)
			return
		}
		last := n.SubnetCount() - 1
		if i, ok := n.IndexOf(n.SubnetAt(last)); !ok || i != last {
			t.Errorf("%s: subnet %d is %s, whose number is %d, %t", b, last, n.SubnetAt(last), i, ok)
		}
		again, err := json.Marshal(n)
		if err != nil {
			t.Fatal(err)
		}
		if back, _, err := ParseNetwork(again); err != nil || back != n {
			t.Errorf("%s became %s: %v", b, again, err)
		}
		if _, _, err := ParseNetwork(with(b, `"Nobody":1`)); !names(err, "Nobody") {
			t.Errorf("%s with another field: %v", b, err)
		}
	})
}

// FuzzParseNetConf: strict inside "tenure", tolerant outside.
func FuzzParseNetConf(f *testing.F) {
	for _, seed := range []string{
		`{"name":"n","tenure":{"socket":"/x"}}`, `{"name":"n","cni.dev/valid-attachments":[{}]}`,
		`{"name":"n","runtimeConfig":{"ips":[""],"mac":"x"}}`, `{"ipam":null,"tenure":null}`, `{"prevResult":{"a":[1]}}`, `null`,
		`{"cniVersion":"1.0.0","name":"tenure","type":"tenure","tenure":{"socket":"/run/tenure/tenured.sock"},"runtimeConfig":{"portMappings":[],"ips":["10.5.1.9/24","fd00::9"],"mac":"02:11:22:33:44:55"}}`,
		`{"cniVersion":"0.4.0","name":"mynet","type":"bridge","bridge":"tenure0","ipam":{"type":"tenure-ipam","tenure":{"socket":"/s"}}}`,
		`{"name":"n","tenure":{"socket":1,"Socket":"/x","other":[]}}`, `{"name":"n","runtimeConfig":{"ips":["` + strings.Repeat("7", 5000) + `"]}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := ParseNetConf(b)
		if err != nil {
			if !errors.Is(err, ErrDecode) {
				told(t, err)
			}
			return
		}
		if n.Name == "" {
			t.Error("no name and no error")
		}
		if string(bytes.TrimSpace(b)) == "null" {
			return
		}
		if more, err := ParseNetConf(with(b, `"nobody":{"a":[1]}`)); err != nil || !reflect.DeepEqual(more, n) {
			t.Errorf("%s with a field of somebody's: %v, %v", b, more, err)
		}
		if _, err := ParseNetConf(with(b, `"tenure":{"nobody":1}`)); !names(err, "tenure.nobody") {
			t.Errorf("%s with another field inside: %v", b, err)
		}
	})
}

// FuzzAttachments: who is named by either list is kept, and no list is no empty one.
func FuzzAttachments(f *testing.F) {
	for _, seed := range [][2]string{
		{"", ""}, {"null", "null"}, {"[]", ""}, {"", "[]"}, {"null", `[{"containerID":"c1","ifname":"eth0"}]`},
		{`[{"containerID":"c1","ifname":"eth0"},{"containerID":"c2","ifname":"eth0"}]`, `[{"containerID":"c1","ifname":"eth0"}]`},
		{`{}`, `7`}, {`[null]`, `["c1"]`},
	} {
		f.Add(seed[0], seed[1])
	}
	given := func(text string) (all []types.GCAttachment, listed bool) {
		var list *[]types.GCAttachment
		if json.Unmarshal([]byte(text), &list) != nil || list == nil {
			return nil, false
		}
		return *list, true
	}
	f.Fuzz(func(t *testing.T, valid, old string) {
		object := `{"name":"n"`
		for field, list := range map[string]string{"cni.dev/valid-attachments": valid, "cni.dev/attachments": old} {
			if list != "" {
				if !json.Valid([]byte(list)) {
					return
				}
				object += `,"` + field + `":` + list
			}
		}
		n, err := ParseNetConf([]byte(object + "}"))
		if err != nil {
			if !errors.Is(err, ErrDecode) {
				t.Errorf("%s: %v", object, err)
			}
			return
		}
		a, listed := given(valid)
		b, listedToo := given(old)
		if (n.Attachments != nil) != (listed || listedToo) {
			t.Fatalf("%s: attachments %v", object, n.Attachments)
		}
		for _, one := range slices.Concat(a, b) {
			if !slices.Contains(*n.Attachments, one) {
				t.Errorf("%s: %v is not kept", object, one)
			}
		}
	})
}

// FuzzParseArgs: keys of others change nothing.
func FuzzParseArgs(f *testing.F) {
	for _, seed := range []string{
		"", "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID=f00", "IP=10.5.1.9", "IP=10.5.1.9/24,fd00::9",
		"IP=", "IP", ";;=;", "IP=fe80::1%eth0", "IP=" + strings.Repeat("1", 3000), "IP=\x00,\x1b[2J;IP=\xff", strings.Repeat("IP=x;", 500),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := ParseArgs(text)
		if err != nil {
			told(t, err)
			if !names(err, "CNI_ARGS IP") {
				t.Errorf("%q: %v", text, err)
			}
		}
		for _, ip := range a.IPs {
			if !ip.IsValid() || ip.Zone() != "" || ip.Is4In6() {
				t.Errorf("%q: %s", text, ip)
			}
		}
		if more, again := ParseArgs("NOBODY=1;" + text + ";ip=7"); !reflect.DeepEqual(more, a) || (again == nil) != (err == nil) {
			t.Errorf("%q with keys of others: %v, %v; alone %v, %v", text, more, again, a, err)
		}
	})
}

// FuzzLoad: the daemon's file. What is accepted can be run with, and would not be accepted
// with a setting that nobody knows.
func FuzzLoad(f *testing.F) {
	for _, seed := range []string{
		"", "name: t\nnode-name: n1\niface: [eth0, 'ens*']\npublic-ip: 192.0.2.1\n", "etcd-endpoints: [http://192.0.2.1:2379]\netcd-prefix: /a/b\n",
		"run-dir: /run/t\nstate-dir: /var/lib/t\nsocket: /run/t/s\nsubnet-file: /run/t/e\ncni-conf-file: /etc/cni/net.d/10-t.conflist\n",
		"ip-masq: false\naddress-cooldown: 5s\nexclude: 10.5.0.0/30,10.5.9.0/24\nmetrics-listen: ''\nlog-level: debug\nlog-format: json\n",
		"new-cluster: true\nnetwork-config: {Network: 10.5.0.0/16}\n", "etcd-embedded: true\netcd-embedded-listen: http://127.0.0.1:2379\n",
		"etcd-cafile: /c\netcd-certfile: /d\netcd-username: u\n", "a: &a [*a]", "{", "- 1", "name: 1e3", "name: x\nname: y", "config: /x", "version: true",
		"'" + strings.Repeat("k", 3000) + "': 1", "name: '" + strings.Repeat("\\n", 3000) + "'", "? [a, b]\n: c\n", "!!binary x: 1", "<<: {name: t}",
		"---\nname: t\n...\n", "name: t\n---\nnode-name: n1\n", "# nothing\n", "~", "name: \"\\e[2J\"", "node-name: \"\\0\"",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		path := write(t, "tenured.yaml", text)
		load := func(path string) (Daemon, error) { return Load([]string{"--config", path}, nil, io.Discard) }
		if strings.Contains(text, "@") {
			return // a file of the machine's
		}
		d, err := load(path)
		if err != nil {
			told(t, err)
			return
		}
		if !isName(d.Name) || d.NodeName == "" || len(d.Etcd.Endpoints) == 0 || len(d.Socket) > maxSocket {
			t.Errorf("%q: %+v", text, d)
		}
		for _, p := range []string{d.RunDir, d.StateDir, d.Socket, d.SubnetFile} {
			if !filepath.IsAbs(p) {
				t.Errorf("%q: the path %q", text, p)
			}
		}
		if d.NewCluster != (d.NetworkConfig != nil) {
			t.Errorf("%q: a new cluster %t with the config %s", text, d.NewCluster, d.NetworkConfig)
		}
		if again, err := load(path); err != nil || !reflect.DeepEqual(again, d) {
			t.Errorf("%q is another one the second time: %v", text, err)
		}
		if _, err := load(write(t, "tenured.yaml", text+"\nnobody: 1\n")); err == nil {
			t.Errorf("%q is accepted with another setting", text)
		} else {
			told(t, err)
		}
	})
}
