package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/google/go-cmp/cmp"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/attach"
	"github.com/tenure-cni/tenure/ipam"
)

// TestResults holds what runtimes read, in every version they may speak, to
// the files in testdata.
func TestResults(t *testing.T) {
	for _, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		for plugin, add := range map[string]func(*rig) func(context.Context, *api.Request) *api.Response{
			"tenure":      func(r *rig) func(context.Context, *api.Request) *api.Response { return r.Add },
			"tenure-ipam": func(r *rig) func(context.Context, *api.Request) *api.Response { return r.IPAMAdd },
		} {
			name := plugin + "-" + version
			t.Run(name, func(t *testing.T) {
				r := newRig(t, held(t, "10.5.34.0/24", 7))
				resp := add(r)(t.Context(), &api.Request{ContainerID: "c1", IfName: "eth0", Netns: "/run/netns/c1",
					Config: json.RawMessage(fmt.Sprintf(`{"cniVersion":%q,"name":"net","type":"bridge","dns":{"nameservers":["192.0.2.53"]}}`, version))})
				if resp.Error != nil {
					t.Fatal(resp.Error)
				}
				var got bytes.Buffer
				if err := json.Indent(&got, resp.Result, "", "  "); err != nil {
					t.Fatal(err)
				}
				got.WriteByte('\n')
				want, err := os.ReadFile(filepath.Join("testdata", name+".json"))
				if err != nil {
					t.Errorf("%v; the result is\n%s", err, &got)
				} else if diff := cmp.Diff(string(want), got.String()); diff != "" {
					t.Errorf("result (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// TestResultKeepsThePreviousOne: a plugin ahead of us made an interface, and
// that is still in the result, where indices lead to what they led to.
func TestResultKeepsThePreviousOne(t *testing.T) {
	for _, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		t.Run(version, func(t *testing.T) {
			r := newRig(t, held(t, "10.5.34.0/24", 7))
			family := ""
			if version < "1" {
				family = `"version":"4",`
			}
			req := request("c1", fmt.Sprintf(`,"prevResult":{"cniVersion":%q,"interfaces":[{"name":"dummy0","sandbox":"/run/netns/c1"}],
				"ips":[{%s"address":"192.0.2.7/24","interface":0}],"routes":[{"dst":"198.51.100.0/24"}],"dns":{"nameservers":["192.0.2.53"]}}`, version, family))
			req.Config = json.RawMessage(strings.Replace(string(req.Config), "1.1.0", version, 1))
			resp := r.Add(t.Context(), req)
			if resp.Error != nil {
				t.Fatal(resp.Error)
			}
			parsed, err := create.CreateFromBytes(resp.Result)
			if err != nil || parsed.Version() != version {
				t.Fatalf("%s: %v", resp.Result, err)
			}
			got, err := current.NewResultFromResult(parsed)
			if err != nil || len(got.Interfaces) != 4 || len(got.IPs) != 2 || len(got.Routes) != 2 || len(got.DNS.Nameservers) != 1 {
				t.Fatalf("%s: %v", resp.Result, err)
			}
			if got.Interfaces[0].Name != "dummy0" || *got.IPs[0].Interface != 0 || *got.IPs[1].Interface != 3 || got.Interfaces[3].Name != "eth0" {
				t.Errorf("the result is %s", resp.Result)
			}
		})
	}
	r := newRig(t, held(t, "10.5.34.0/24", 7))
	wantCode(t, r.Add(t.Context(), request("c1", `,"prevResult":{"cniVersion":"1.1.0","ips":"nonsense"}`)), api.CodeDecode)
	wantNothing(t, r)
}

func TestResultInAnUnknownVersion(t *testing.T) {
	r := newRig(t, held(t, "10.5.34.0/24", 7))
	req := request("c1", "")
	req.Config = json.RawMessage(strings.Replace(string(req.Config), "1.1.0", "9.9.9", 1))
	if resp := r.Add(t.Context(), req); resp.Error == nil {
		t.Errorf("answered %s in a version nobody knows", resp.Result)
	}
	wantNothing(t, r)
	if resp := r.IPAMAdd(t.Context(), req); resp.Error == nil {
		t.Errorf("answered %s in a version nobody knows", resp.Result)
	}
	wantNothing(t, r)
}

// TestCodes is the whole mapping from errors to CNI codes, wrapped as callers
// wrap them.
func TestCodes(t *testing.T) {
	for _, c := range []struct {
		err  error
		code uint
	}{
		{conf.ErrDecode, api.CodeDecode},
		{conf.Faults{{Field: "name", Text: "required"}}, api.CodeInvalidConfig},
		{ipam.ErrFull, api.CodeNoAddress},
		{ipam.ErrUnavailable, api.CodeAddressUnavailable},
		{attach.ErrInterfaceExists, api.CodeInterfaceExists},
		{attach.ErrForeignHost, api.CodeInterfaceExists},
		{attach.ErrNamespace, api.CodeNamespace},
		{attach.ErrNoBridge, api.CodeTryAgain},
		{context.DeadlineExceeded, api.CodeTryAgain},
		{context.Canceled, api.CodeTryAgain},
		{errors.New("no space left on device"), api.CodeIO},
		{&types.Error{Code: api.CodeCheckStranded, Msg: "stranded"}, api.CodeCheckStranded},
	} {
		for _, err := range []error{c.err, fmt.Errorf("attach net/c1/eth0: %w", c.err), errors.Join(c.err, errors.New("undo too"))} {
			e := toCNI(err)
			if e.Code != c.code {
				t.Errorf("%v: code %d, want %d", err, e.Code, c.code)
			}
			if e.Msg == "" {
				t.Errorf("%v: no text", err)
			}
		}
	}
	if e := toCNI(nil); e != nil {
		t.Errorf("no error is %v", e)
	}
}
