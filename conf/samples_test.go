package conf

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSampleConflist(t *testing.T) {
	const contract = `{"cniVersion":"0.4.0","cniVersions":["0.3.1","0.4.0","1.0.0","1.1.0"],"name":"tenure","plugins":[
		{"type":"tenure","tenure":{"socket":"/run/tenure/tenured.sock"}},{"type":"portmap","capabilities":{"portMappings":true}}]}`
	file, err := os.ReadFile("samples/10-tenure.conflist")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(file), string(Conflist(sampleSocket))); diff != "" {
		t.Error(diff)
	}
	var got, want any
	if err := json.Unmarshal(file, &got); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(contract), &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestConflistSocket(t *testing.T) {
	const odd = `/run/a "quoted" \ $1/t.sock`
	var list struct {
		Plugins []json.RawMessage `json:"plugins"`
	}
	if err := json.Unmarshal(Conflist(odd), &list); err != nil {
		t.Fatal(err)
	}
	var plugin map[string]any
	if err := json.Unmarshal(list.Plugins[0], &plugin); err != nil {
		t.Fatal(err)
	}
	plugin["name"] = "tenure" // as the runtime adds it
	b, err := json.Marshal(plugin)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := ParseNetConf(b); err != nil || n.Tenure.Socket != odd {
		t.Errorf("%q, %v", n.Tenure.Socket, err)
	}
}

func TestSampleNetwork(t *testing.T) {
	file, err := os.ReadFile("samples/network.json")
	if err != nil {
		t.Fatal(err)
	}
	if n := mustNetwork(t, string(file)); n != mustNetwork(t, `{"Network":"10.5.0.0/16"}`) {
		t.Errorf("the sample is not the default: %+v", n)
	}
}

func TestSampleDaemon(t *testing.T) {
	d := mustLoad(t, []string{"--config=samples/tenured.yaml", "--node-name=n1"}, nil)
	want := mustLoad(t, []string{"--node-name=n1", "--cni-conf-file=/etc/cni/net.d/10-tenure.conflist"}, nil)
	if diff := cmp.Diff(want, d, netipAddrs, netipValues); diff != "" {
		t.Error(diff)
	}
}
