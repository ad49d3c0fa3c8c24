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
