package conf

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
)

func TestNetConf(t *testing.T) {
	n, err := ParseNetConf([]byte(`{"cniVersion":"1.0.0","name":"net","type":"tenure","weather":"fine","dns":{"nameservers":["192.0.2.53"]},
		"tenure":{"socket":"/run/x.sock"},"prevResult":{"cniVersion":"1.0.0"},
		"runtimeConfig":{"ips":["10.5.1.9/24","10.5.1.10","fd00::9"],"mac":"02:00:00:00:00:09","portMappings":[]}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := []netip.Addr{netip.MustParseAddr("10.5.1.9"), netip.MustParseAddr("10.5.1.10"), netip.MustParseAddr("fd00::9")}
	if diff := cmp.Diff(want, n.IPs, netipAddrs); diff != "" {
		t.Error(diff)
	}
	if n.Name != "net" || n.CNIVersion != "1.0.0" || n.Type != "tenure" || n.Tenure.Socket != "/run/x.sock" ||
		n.MAC != [6]byte{2, 0, 0, 0, 0, 9} || n.RawPrevResult == nil || n.DNS.Nameservers[0] != "192.0.2.53" || n.Attachments != nil {
		t.Errorf("%+v", n)
	}
	n, err = ParseNetConf([]byte(`{"cniVersion":"1.0.0","name":"net","type":"bridge","ipam":{"type":"tenure-ipam","routes":[],"tenure":{"socket":"/run/y.sock"}}}`))
	if err != nil || n.Tenure.Socket != "/run/y.sock" || n.IPAM.Type != "tenure-ipam" {
		t.Errorf("%+v, %v", n, err)
	}
}

// TestNetConfAttachments: no list is not an empty list, and null is no list.
func TestNetConfAttachments(t *testing.T) {
	a, b := types.GCAttachment{ContainerID: "a", IfName: "eth0"}, types.GCAttachment{ContainerID: "b", IfName: "eth0"}
	const ja, jb = `{"containerID":"a","ifname":"eth0"}`, `{"containerID":"b","ifname":"eth0"}`
	for text, want := range map[string]*[]types.GCAttachment{
		`"x":1`:                                    nil,
		`"cni.dev/valid-attachments":null`:         nil,
		`"cni.dev/attachments":null`:               nil,
		`"cni.dev/valid-attachments":[]`:           {},
		`"cni.dev/attachments":[]`:                 {},
		`"cni.dev/valid-attachments":[` + ja + `]`: {a},
		`"cni.dev/attachments":[` + jb + `]`:       {b},
		`"cni.dev/valid-attachments":[` + ja + `],"cni.dev/attachments":[` + ja + `,` + jb + `]`: {a, b},
		`"cni.dev/valid-attachments":null,"cni.dev/attachments":[` + jb + `]`:                    {b},
	} {
		n, err := ParseNetConf([]byte(`{"name":"net",` + text + `}`))
		if err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if diff := cmp.Diff(want, n.Attachments); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
	}
}

func TestNetConfFaults(t *testing.T) {
	for text, field := range map[string]string{
		``: "", `[]`: "", `{"name":5}`: "", `{"name":"n","cni.dev/valid-attachments":{}}`: "", `{"name":"n"} x`: "",
		`{}`:                                                             "name",
		`{"name":"n","tenure":"x"}`:                                      "tenure",
		`{"name":"n","tenure":{"sockett":"/x"}}`:                         "tenure.sockett",
		`{"name":"n","tenure":{"socket":1}}`:                             "tenure.socket",
		`{"name":"n","ipam":{"tenure":{"a":1}}}`:                         "ipam.tenure.a",
		`{"name":"n","runtimeConfig":{"ips":["10.5.1"]}}`:                "runtimeConfig.ips",
		`{"name":"n","runtimeConfig":{"ips":["fe80::1%eth0"]}}`:          "runtimeConfig.ips",
		`{"name":"n","runtimeConfig":{"mac":"02:00"}}`:                   "runtimeConfig.mac",
		`{"name":"n","runtimeConfig":{"mac":"01:00:5e:00:00:01"}}`:       "runtimeConfig.mac",
		`{"name":"n","runtimeConfig":{"mac":"00:00:00:00:00:00"}}`:       "runtimeConfig.mac",
		`{"name":"n","runtimeConfig":{"mac":"02:00:00:00:00:00:00:01"}}`: "runtimeConfig.mac",
	} {
		n, err := ParseNetConf([]byte(text))
		if field == "" {
			if !errors.Is(err, ErrDecode) {
				t.Errorf("%s: %v", text, err)
			}
			continue
		}
		var faults Faults
		if !errors.As(err, &faults) || len(faults) != 1 || faults[0].Field != field {
			t.Errorf("%s: want a fault of %s, got %v", text, field, err)
		}
		if field != "name" && n.Name != "n" {
			t.Errorf("%s: a DEL would not know the network: %+v", text, n)
		}
	}
}

func TestArgs(t *testing.T) {
	for text, want := range map[string]Args{
		"":                {},
		"IgnoreUnknown=1": {},
		"K8S_POD_NAME=p;IP=10.5.1.9;X;K8S_POD_NAMESPACE=ns;;A=b=c": {IPs: []netip.Addr{netip.MustParseAddr("10.5.1.9")}, PodNamespace: "ns", PodName: "p"},
		"IP=10.5.1.9/24,fd00::9":                                   {IPs: []netip.Addr{netip.MustParseAddr("10.5.1.9"), netip.MustParseAddr("fd00::9")}},
		"IP=":                                                      {},
	} {
		got, err := ParseArgs(text)
		if diff := cmp.Diff(want, got, netipAddrs); diff != "" || err != nil {
			t.Errorf("%q: %s, %v", text, diff, err)
		}
	}
	if _, err := ParseArgs("IP=somewhere"); err == nil {
		t.Error("no fault")
	}
}
