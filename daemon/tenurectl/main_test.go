package main

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/server"
)

// ran runs the command as a shell would.
func ran(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(ctx, args, &out, &errs)
	return code, out.String(), errs.String()
}

// serve answers status on a socket of its own.
func serve(t *testing.T, s *api.Status) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "tenured.sock")
	l, err := server.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- server.Serve(ctx, l, server.Handlers{Status: func() *api.Status { return s }}, slog.New(slog.DiscardHandler))
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return socket
}

// healthy is a node with nothing wrong, and sick one with everything.
func healthy() *api.Status {
	return &api.Status{
		Version: "v1", Node: "n1", UID: "6d1c2f3e-0000-4000-8000-000000000001", Network: "10.5.0.0/16", State: api.StateHeld, Ready: true,
		Lease:  &api.Lease{ID: "694d9f1c2a3b4c5d", TTLSeconds: 86400, RemainingSeconds: 86093.25, LastProofSecondsAgo: 6.75, Epoch: 1796000000},
		Subnet: "10.5.34.0/24", PublicIP: "192.0.2.11", Interface: "eth0", MTU: 1450,
		Addresses: api.Addresses{Total: 253, Used: 7, Cooling: 1},
		Stranded:  []api.Stranded{},
		Peers:     []api.Peer{{Node: "n2", Subnet: "10.5.35.0/24", PublicIP: "192.0.2.12", Epoch: 1796000001, State: api.PeerProgrammed}},
		Etcd: api.Etcd{Revision: 42, Endpoints: []api.Endpoint{
			{URL: "http://192.0.2.2:2379", Healthy: true, Since: "2026-11-30T00:00:00Z", Version: "3.7.3"}}},
		Problems: []api.Problem{},
	}
}

func sick() *api.Status {
	s := healthy()
	s.State, s.Ready, s.Reason = api.StateFenced, false, "the overlay of 10.5.34.0/24 is closed: the deadline passed"
	s.Lease.RemainingSeconds, s.Lease.LastProofSecondsAgo = 0, -1
	s.Network6, s.Subnet6 = "fd00:5::/48", "fd00:5:0:22::/64"
	s.Stranded = []api.Stranded{{Subnet: "10.5.33.0/24", ContainerID: "c1", IfName: "eth0", Address: "10.5.33.9"}}
	s.Peers = append(s.Peers, api.Peer{Node: "long-name", Subnet: "10.5.36.0/24", PublicIP: "192.0.2.113", Epoch: 7, State: api.PeerConflict, Reason: "a route of others is in the way"})
	s.Etcd.Endpoints = []api.Endpoint{{URL: "http://192.0.2.2:2379", Since: "2026-11-30T00:00:00Z", Reason: "connection refused"}, {URL: "http://192.0.2.3:2379"}}
	s.Problems = []api.Problem{
		{Code: "etcd-unreachable", Severity: api.SeverityError, Text: "etcd does not answer", Since: "2026-11-30T00:00:00Z", Fix: "check the endpoints"},
		{Code: "foreign", Severity: api.SeverityWarning, Text: "docker0 is in the way", Since: "2026-11-29T00:00:00Z", Fix: "move it"},
	}
	return s
}

func TestStatusTable(t *testing.T) {
	starting := &api.Status{Node: "n1", UID: "u", State: api.StateStarting, Reason: "etcd has not answered yet"}
	for name, s := range map[string]*api.Status{"healthy": healthy(), "sick": sick(), "starting": starting} {
		t.Run(name, func(t *testing.T) {
			_, got, stderr := ran(t.Context(), "status", "--socket", serve(t, s))
			if stderr != "" {
				t.Errorf("on standard error: %s", stderr)
			}
			want, err := os.ReadFile(filepath.Join("testdata", name+".txt"))
			if err != nil {
				t.Fatalf("%v; the table is\n%s", err, got)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("table (-want +got):\n%s", diff)
			}
		})
	}
}

// TestStatusJSON: what scripts read is the daemon's own object.
func TestStatusJSON(t *testing.T) {
	for _, want := range []*api.Status{healthy(), sick()} {
		_, stdout, stderr := ran(t.Context(), "status", "-o", "json", "--socket", serve(t, want))
		if stderr != "" {
			t.Errorf("on standard error: %s", stderr)
		}
		var got api.Status
		d := json.NewDecoder(strings.NewReader(stdout))
		d.DisallowUnknownFields()
		if err := d.Decode(&got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(*want, got); diff != "" {
			t.Errorf("status (-want +got):\n%s", diff)
		}
	}
}

// TestStatusYAML is the same object, and wide the table with more behind it.
func TestStatusYAML(t *testing.T) {
	want := sick()
	_, stdout, _ := ran(t.Context(), "status", "-o", "yaml", "--socket", serve(t, want))
	var got api.Status
	if err := yaml.UnmarshalStrict([]byte(stdout), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(*want, got); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	_, table, _ := ran(t.Context(), "status", "--socket", serve(t, want))
	_, wide, _ := ran(t.Context(), "status", "-o", "wide", "--socket", serve(t, want))
	more, ok := strings.CutPrefix(wide, table)
	if !ok || !strings.Contains(more, "programmed") || !strings.Contains(more, want.Version) {
		t.Errorf("wide is\n%s", wide)
	}
}

func TestExitCodes(t *testing.T) {
	warned := healthy()
	warned.Problems = []api.Problem{{Code: "etcd-version", Severity: api.SeverityWarning}}
	failing := healthy()
	failing.Problems = []api.Problem{{Code: "stranded-pods", Severity: api.SeverityError}}
	notReady := healthy()
	notReady.State, notReady.Ready = api.StateWaiting, false
	early := &api.Status{State: api.StateStarting, Reason: "etcd has not answered yet"}
	gone := filepath.Join(t.TempDir(), "tenured.sock")

	for name, c := range map[string]struct {
		args   []string
		code   int
		stderr string
	}{
		"healthy":              {[]string{"status", "--socket", serve(t, healthy())}, exitOK, ""},
		"a warning":            {[]string{"status", "--socket", serve(t, warned)}, exitOK, ""},
		"an error":             {[]string{"status", "--socket", serve(t, failing)}, exitStands, ""},
		"an error, as JSON":    {[]string{"status", "-o", "json", "--socket", serve(t, failing)}, exitStands, ""},
		"not ready":            {[]string{"status", "--socket", serve(t, notReady)}, exitStands, ""},
		"no daemon":            {[]string{"status", "--socket", gone}, exitNotReached, gone},
		"no such form":         {[]string{"status", "-o", "xml", "--socket", gone}, exitUsage, `"xml"`},
		"none stranded":        {[]string{"stranded", "--socket", serve(t, healthy())}, exitOK, ""},
		"some stranded":        {[]string{"stranded", "--socket", serve(t, sick())}, exitStands, ""},
		"an error, but none":   {[]string{"stranded", "--socket", serve(t, failing)}, exitOK, ""},
		"none, as JSON":        {[]string{"stranded", "-o", "json", "--socket", serve(t, notReady)}, exitOK, ""},
		"some, as JSON":        {[]string{"stranded", "-o", "json", "--socket", serve(t, sick())}, exitStands, ""},
		"some, as YAML":        {[]string{"stranded", "-o", "yaml", "--socket", serve(t, sick())}, exitStands, ""},
		"stranded, who knows":  {[]string{"stranded", "--socket", serve(t, early)}, exitNotReached, "etcd has not answered yet"},
		"stranded, no daemon":  {[]string{"stranded", "--socket", gone}, exitNotReached, gone},
		"stranded, no form":    {[]string{"stranded", "-o", "xml", "--socket", gone}, exitUsage, `"xml"`},
		"stranded, arguments":  {[]string{"stranded", "n1"}, exitUsage, "n1"},
		"no such command":      {[]string{"stats"}, exitUsage, "stats"},
		"no such flag":         {[]string{"status", "--nonsense"}, exitUsage, "--nonsense"},
		"an argument too many": {[]string{"status", "n1"}, exitUsage, "n1"},
		"nothing to install":   {[]string{"install", "--from", filepath.Dir(gone), "--root", filepath.Dir(gone)}, exitUsage, "does not hold the four programs"},
		"version":              {[]string{"version"}, exitOK, ""},
		"help":                 {[]string{"--help"}, exitOK, ""},
		"nothing":              {nil, exitOK, ""},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := ran(t.Context(), c.args...)
			if code != c.code {
				t.Errorf("exit code %d, want %d: %s", code, c.code, stderr)
			}
			if !strings.Contains(stderr, c.stderr) || (stderr == "") != (c.stderr == "") {
				t.Errorf("on standard error %q, want %q in it", stderr, c.stderr)
			}
			if (code == exitOK || code == exitStands) == (stdout == "") {
				t.Errorf("exit code %d with the output %q", code, stdout)
			}
		})
	}
}

// TestStranded: a form for people, one for programs, one for a shell's loop.
func TestStranded(t *testing.T) {
	two := sick()
	two.Stranded = append(two.Stranded,
		api.Stranded{Subnet: "10.5.33.0/24", ContainerID: "c1", IfName: "net1", Address: "10.5.33.10"},
		api.Stranded{Subnet: "10.5.31.0/24", ContainerID: "c2", IfName: "eth0", Address: "10.5.31.2"})
	nobody := healthy()
	nobody.Stranded = nil
	for _, c := range []struct {
		status *api.Status
		form   string
		want   string
	}{
		{two, "ids", "c1\nc2\n"},
		{two, "table", "STRANDED    SUBNET        CONTAINER  INTERFACE\n10.5.33.9   10.5.33.0/24  c1         eth0\n" +
			"10.5.33.10  10.5.33.0/24  c1         net1\n10.5.31.2   10.5.31.0/24  c2         eth0\n"},
		{nobody, "ids", ""}, {nobody, "table", "no pod is stranded\n"}, {nobody, "json", "[]\n"}, {healthy(), "json", "[]\n"},
	} {
		_, got, stderr := ran(t.Context(), "stranded", "-o", c.form, "--socket", serve(t, c.status))
		if got != c.want || stderr != "" {
			t.Errorf("-o %s prints\n%s and %q, want\n%s", c.form, got, stderr, c.want)
		}
	}
	_, stdout, _ := ran(t.Context(), "stranded", "-o", "json", "--socket", serve(t, two))
	var got []api.Stranded
	d := json.NewDecoder(strings.NewReader(stdout))
	d.DisallowUnknownFields()
	if err := d.Decode(&got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(two.Stranded, got); diff != "" {
		t.Errorf("stranded (-want +got):\n%s", diff)
	}
}

func TestADaemonThatMakesNoSense(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "tenured.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("nonsense"))
	})}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	if code, stdout, stderr := ran(t.Context(), "status", "--socket", socket); code != exitNotReached || stdout != "" || !strings.Contains(stderr, socket) {
		t.Errorf("exit code %d with %q and %q", code, stdout, stderr)
	}
}

// TestASilentDaemon: it took the call and says nothing.
func TestASilentDaemon(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "tenured.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if code, _, stderr := ran(ctx, "status", "--socket", socket); code != exitNotReached || stderr == "" {
		t.Errorf("exit code %d, %q", code, stderr)
	}
}

func TestInitChecksBeforeItTouchesAnything(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var calls atomic.Int64
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			calls.Add(1)
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close() })
	endpoint := "http://" + l.Addr().String()

	for name, c := range map[string]struct {
		args []string
		text string
	}{
		"nothing":              {nil, "--network"},
		"both":                 {[]string{"--network", "10.5.0.0/16", "--network-config", `{"Network":"10.5.0.0/16"}`}, "either --network or --network-config"},
		"no CIDR":              {[]string{"--network", "10.5.0.0"}, "10.5.0.0"},
		"host bits":            {[]string{"--network", "10.5.0.1/16"}, "Network"},
		"too small":            {[]string{"--network", "10.5.0.0/31"}, "Network"},
		"no JSON":              {[]string{"--network-config", "nonsense"}, "not JSON"},
		"no such file":         {[]string{"--network-config", "@no-such-file"}, "no-such-file"},
		"an unknown field":     {[]string{"--network-config", `{"Network":"10.5.0.0/16","Nonsense":1}`}, "Nonsense"},
		"every fault at once":  {[]string{"--network-config", `{"Network":"10.5.0.1/16","LeaseTTL":"1s"}`}, "LeaseTTL"},
		"a bad prefix":         {[]string{"--network", "10.5.0.0/16", "--etcd-prefix", "tenure/"}, "etcd-prefix"},
		"a missing file":       {[]string{"--network", "10.5.0.0/16", "--etcd-cafile", "no-such-ca"}, "no-such-ca"},
		"half of a login":      {[]string{"--network", "10.5.0.0/16", "--etcd-username", "root"}, "etcd-username"},
		"an argument too many": {[]string{"--network", "10.5.0.0/16", "now"}, "now"},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := ran(t.Context(), append([]string{"init", "--etcd-endpoints", endpoint}, c.args...)...)
			if code != exitUsage || stdout != "" || !strings.Contains(stderr, c.text) {
				t.Errorf("exit code %d, output %q, error %q; want %d and %q", code, stdout, stderr, exitUsage, c.text)
			}
		})
	}
	if n := calls.Load(); n != 0 {
		t.Errorf("etcd was called %d times", n)
	}
	if code, _, stderr := ran(t.Context(), "init", "--network", "10.5.0.0/16", "--etcd-endpoints", "nonsense"); code != exitUsage || !strings.Contains(stderr, "nonsense") {
		t.Errorf("a bad endpoint: exit code %d, %q", code, stderr)
	}
}

func TestInitWithEtcdAway(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	endpoint := "http://" + l.Addr().String()
	_ = l.Close() // nobody listens there now
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	code, stdout, stderr := ran(ctx, "init", "--network", "10.5.0.0/16", "--etcd-endpoints", endpoint)
	if code != exitNotReached || stdout != "" || !strings.Contains(stderr, endpoint) {
		t.Errorf("exit code %d, output %q, error %q", code, stdout, stderr)
	}
}

func TestNetworkConfig(t *testing.T) {
	const want = `{"Backend":{"Type":"vxlan"},"Network":"10.5.0.0/16"}`
	if b, _, err := networkConfig("10.5.0.0/16", ""); string(b) != want || err != nil {
		t.Errorf("--network is %s, %v; want %s", b, err, want)
	}
	const six = `{"Backend":{"Type":"vxlan"},"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:5::/48"}`
	if b, _, err := networkConfig("fd00:5::/48", ""); string(b) != six || err != nil {
		t.Errorf("--network is %s, %v; want %s", b, err, six)
	}
	file := filepath.Join(t.TempDir(), "network.json")
	const config = `{"Network":"10.5.0.0/16","EnableNFTables":true}`
	if err := os.WriteFile(file, []byte(config+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b, warnings, err := networkConfig("", "@"+file)
	if err != nil || strings.TrimSpace(string(b)) != config || len(warnings) != 1 {
		t.Errorf("--network-config @FILE is %s with warnings %v, %v", b, warnings, err)
	}
}
