package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tenure-cni/tenure/daemon/api"
)

// TestDockerOpts: docker is never given addresses that CNI pods may have, and
// nothing where there is no subnet.
func TestDockerOpts(t *testing.T) {
	empty, none := healthy(), &api.Status{State: api.StateWaiting, Reason: "no config yet"}
	six := &api.Status{State: api.StateHeld, Subnet6: "fd00:5:0:22::/64"}
	empty.Addresses.Used = 0
	second := filepath.Join(t.TempDir(), "b.yaml")
	free, used := serve(t, empty), serve(t, healthy())
	if err := os.WriteFile(second, []byte("name: b\nsocket: "+free+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const whole, part = "--bridge=tenure0 --fixed-cidr=10.5.34.0/24 --mtu=1450 --ip-masq=false", "--bridge=tenure0 --fixed-cidr=10.5.34.128/25 --mtu=1450 --ip-masq=false"
	for what, c := range map[string]struct {
		args     []string
		code     int
		out, err string
	}{
		"no pods":            {[]string{"--socket", free}, exitOK, `DOCKER_OPTS="` + whole + "\"\n", ""},
		"another instance":   {[]string{"--config", second}, exitOK, "--bridge=b0 ", ""},
		"by name and socket": {[]string{"--name=b", "--socket", free}, exitOK, "--bridge=b0 ", ""},
		"by name alone":      {[]string{"--name=c", "--config", second}, exitUsage, "", "--socket"},
		"as daemon.json":     {[]string{"-o", "json", "--socket", free}, exitOK, `"fixed-cidr": "10.5.34.0/24"`, ""},
		"pods":               {[]string{"--socket", used}, exitStands, "", "--exclude"},
		"pods, and a part":   {[]string{"--socket", used, "--fixed-cidr=10.5.34.128/25"}, exitOK, `DOCKER_OPTS="` + part + "\"\n", ""},
		"a part of another":  {[]string{"--socket", used, "--fixed-cidr=10.5.35.0/25"}, exitUsage, "", "10.5.34.0/24"},
		"more than it holds": {[]string{"--socket", used, "--fixed-cidr=10.5.0.0/16"}, exitUsage, "", "10.5.34.0/24"},
		"host bits":          {[]string{"--socket", used, "--fixed-cidr=10.5.34.9/25"}, exitUsage, "", "host bits"},
		"no subnet":          {[]string{"--socket", serve(t, none)}, exitStands, "", "waiting: no config yet"},
		"IPv6 alone":         {[]string{"--socket", serve(t, six)}, exitStands, "", "IPv6 alone"},
		"no daemon":          {[]string{"--socket", filepath.Join(t.TempDir(), "x")}, exitNotReached, "", "tenured"},
	} {
		t.Run(what, func(t *testing.T) {
			code, out, said := ran(t.Context(), append([]string{"docker-opts"}, c.args...)...)
			if code != c.code || !strings.Contains(out, c.out) || !strings.Contains(said, c.err) || (c.out == "") != (out == "") {
				t.Errorf("exit code %d: %s%s", code, out, said)
			}
		})
	}
}
