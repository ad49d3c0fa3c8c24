package shim

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/tenure-cni/tenure/daemon/api"
)

// coded is an error as a plugin prints it, with one of the codes.
func coded(t *testing.T, err error, codes ...uint) {
	t.Helper()
	var e *types.Error
	if !errors.As(err, &e) {
		t.Fatalf("%T %v", err, err)
	}
	if len(e.Error()) > 1000 {
		t.Errorf("an error of %d bytes: %.200s", len(e.Error()), e)
	}
	for _, code := range codes {
		if e.Code == code {
			return
		}
	}
	t.Errorf("code %d: %v", e.Code, e)
}

// FuzzReadConfig: what an ADD accepts a DEL accepts too, and calls the same daemon.
func FuzzReadConfig(f *testing.F) {
	for _, seed := range []string{
		`{"cniVersion":"1.0.0","name":"tenure","type":"tenure","tenure":{"socket":"/run/tenure/tenured.sock"}}`,
		`{"cniVersion":"0.4.0","name":"n","type":"bridge","ipam":{"type":"tenure-ipam","tenure":{"socket":"/s"}}}`,
		"", "null", "{}", "[]", `{"tenure":null}`, `{"tenure":{"socket":""}}`, `{"tenure":{"socket":"s"}}`, `{"tenure":{"sock":"/s"}}`, `{"tenure":7,"ipam":7}`,
		`{"cniVersion":7}`, `{"tenure":{"socket":"` + strings.Repeat("x", 4000) + `"}}`, `{"tenure":{"` + strings.Repeat("x", 4000) + `":1}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, path := range []string{api.PathCNI, api.PathIPAM} {
			socket, version, err := readConfig(b, path, true)
			lenient, versionToo, errToo := readConfig(b, path, false)
			switch {
			case err != nil:
				coded(t, err, api.CodeDecode, api.CodeInvalidConfig)
			case !filepath.IsAbs(socket):
				t.Errorf("%q: the socket %q", b, socket)
			case errToo != nil || lenient != socket:
				t.Errorf("%q: an ADD calls %s, a DEL %s (%v)", b, socket, lenient, errToo)
			}
			if errToo == nil && !filepath.IsAbs(lenient) || version != versionToo {
				t.Errorf("%q: the socket %q, versions %q and %q", b, lenient, version, versionToo)
			}
		}
	})
}

// FuzzCheckArgs: the environment's values as skel passes them on.
func FuzzCheckArgs(f *testing.F) {
	f.Add("c1", "/run/netns/x", "eth0")
	f.Add(strings.Repeat("c", 129), strings.Repeat("/n", 3000), "eth%d")
	f.Add("", "", "\xff")
	f.Fuzz(func(t *testing.T, container, netns, ifName string) {
		args := &skel.CmdArgs{ContainerID: container, Netns: netns, IfName: ifName}
		err, errToo := checkArgs(args, true), checkArgs(args, false)
		if err != nil && len(ifName) < 16 {
			coded(t, err, api.CodeInvalidEnvironment)
		}
		if err == nil && (errToo != nil || len(container) > maxContainerID || len(netns) > maxPath) {
			t.Errorf("%d, %d bytes: an ADD is let through, a DEL: %v", len(container), len(netns), errToo)
		}
	})
}
