package server

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/daemon/api"
)

// asRoot gives a request the credentials that a socket would.
func asRoot(r *http.Request) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), peerKey{}, &unix.Ucred{Uid: 0}))
}

func get(t *testing.T, s *api.Status, path string) (int, string) {
	t.Helper()
	h, err := metricsMux(func() *api.Status { return s }, NewTimes())
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

// own are the lines about our own metrics.
func own(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		name := strings.TrimPrefix(strings.TrimPrefix(line, "# HELP "), "# TYPE ")
		if strings.HasPrefix(name, "tenure_") {
			b.WriteString(line)
		}
	}
	return b.String()
}

func TestMetrics(t *testing.T) {
	code, got := get(t, &api.Status{
		State: api.StateUnproven, Ready: true,
		Lease:     &api.Lease{RemainingSeconds: 12.5, LastProofSecondsAgo: 3},
		Addresses: api.Addresses{Total: 253, Used: 7, Cooling: 2},
		Peers:     []api.Peer{{State: api.PeerProgrammed}, {State: api.PeerProgrammed}, {State: api.PeerConflict}},
		Stranded:  []api.Stranded{{ContainerID: "c1", IfName: "eth0"}, {ContainerID: "c1", IfName: "eth1"}, {ContainerID: "c2", IfName: "eth0"}},
	}, "/metrics")
	if code != http.StatusOK {
		t.Fatalf("status %d", code)
	}
	const want = `# HELP tenure_addresses Addresses of the held subnet.
# TYPE tenure_addresses gauge
tenure_addresses{kind="cooling"} 2
tenure_addresses{kind="total"} 253
tenure_addresses{kind="used"} 7
# HELP tenure_lease_last_proof_seconds Seconds since the last proof of the lease, counted from before it was asked for.
# TYPE tenure_lease_last_proof_seconds gauge
tenure_lease_last_proof_seconds 3
# HELP tenure_lease_remaining_seconds Seconds until the kernel closes the overlay by itself.
# TYPE tenure_lease_remaining_seconds gauge
tenure_lease_remaining_seconds 12.5
# HELP tenure_peers Peers by their state in the kernel.
# TYPE tenure_peers gauge
tenure_peers{state="conflict"} 1
tenure_peers{state="pending"} 0
tenure_peers{state="programmed"} 2
tenure_peers{state="unreachable"} 0
# HELP tenure_state 1 for the state the node is in, 0 for the others.
# TYPE tenure_state gauge
tenure_state{state="fenced"} 0
tenure_state{state="held"} 0
tenure_state{state="lost"} 0
tenure_state{state="refused"} 0
tenure_state{state="starting"} 0
tenure_state{state="unproven"} 1
tenure_state{state="waiting"} 0
# HELP tenure_stranded_addresses Pod addresses on subnets the node no longer holds.
# TYPE tenure_stranded_addresses gauge
tenure_stranded_addresses 3
# HELP tenure_stranded_pods Pods with an address on a subnet the node no longer holds.
# TYPE tenure_stranded_pods gauge
tenure_stranded_pods 2
`
	if diff := cmp.Diff(want, own(got)); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
	for _, name := range []string{"go_goroutines", "go_memstats_heap_inuse_bytes", "process_open_fds", "process_resident_memory_bytes"} {
		if !strings.Contains(got, "\n"+name+" ") {
			t.Errorf("no %s", name)
		}
	}
}

func TestMetricsWithoutALease(t *testing.T) {
	_, got := get(t, &api.Status{State: api.StateStarting}, "/metrics")
	if strings.Contains(got, "tenure_lease") {
		t.Errorf("a node without a lease tells about one:\n%s", got)
	}
	if !strings.Contains(got, `tenure_state{state="starting"} 1`) {
		t.Errorf("metrics lack the state:\n%s", got)
	}
}

func TestHealth(t *testing.T) {
	fenced := &api.Status{State: api.StateFenced, Reason: "no proof before the deadline"}
	for _, c := range []struct {
		status *api.Status
		path   string
		code   int
		body   string
	}{
		{okStatus(), "/healthz", http.StatusOK, "ok\n"},
		{fenced, "/healthz", http.StatusOK, "ok\n"}, // it lives; restarting it would not help
		{okStatus(), "/readyz", http.StatusOK, "ok\n"},
		{fenced, "/readyz", http.StatusServiceUnavailable, "fenced: no proof before the deadline\n"},
		{okStatus(), "/v1/status", http.StatusNotFound, "404 page not found\n"},
	} {
		if code, body := get(t, c.status, c.path); code != c.code || body != c.body {
			t.Errorf("%s while %s: %d %q, want %d %q", c.path, c.status.State, code, body, c.code, c.body)
		}
	}
}

func TestServeMetrics(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if err := ServeMetrics(t.Context(), l.Addr().String(), okStatus, NewTimes()); err == nil {
		t.Error("it serves on a port that is taken")
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- ServeMetrics(ctx, "127.0.0.1:0", okStatus, NewTimes()) }()
	cancel()
	if err := <-done; err != nil {
		t.Errorf("ServeMetrics after its context: %v", err)
	}
}
