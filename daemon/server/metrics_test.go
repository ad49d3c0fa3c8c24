package server

import (
	"context"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

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
	h, err := metricsMux(Sources{Status: func() *api.Status { return s }, Counts: counts, Times: NewTimes()})
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

// counts are some of each; that of the passing time is far off.
func counts() Counts {
	return Counts{
		Cycles: map[string]uint64{"proven": 5, "denied": 0, "unanswered": 1}, Proofs: 4,
		Transactions: map[string]uint64{"succeeded": 6}, Passes: 7, Writes: map[string]uint64{"route-set": 8},
		Drops: map[string]uint64{"closed": 9, "token": 0}, Queued: 2, Missed: map[string]uint64{"put": 0, "delete": 1},
	}
}

// own are the lines about our own metrics, without what is only for people.
func own(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		name := strings.TrimPrefix(line, "# TYPE ")
		if strings.HasPrefix(name, "tenure_") {
			b.WriteString(line)
		}
	}
	return b.String()
}

func TestMetrics(t *testing.T) {
	code, got := get(t, &api.Status{
		State: api.StateUnproven, Ready: true,
		Version:   "v1",
		Lease:     &api.Lease{TTLSeconds: 15, RemainingSeconds: 12.5, LastProofSecondsAgo: 3},
		Addresses: api.Addresses{Total: 253, Used: 7, Cooling: 2},
		Peers:     []api.Peer{{State: api.PeerProgrammed}, {State: api.PeerProgrammed}, {State: api.PeerConflict}},
		Etcd:      api.Etcd{Endpoints: []api.Endpoint{{URL: "http://a", Healthy: true, Since: "then"}, {URL: "http://b", Since: "then"}, {URL: "http://c"}}},
		Problems:  []api.Problem{{Code: "foreign", Severity: "warning"}, {Code: "foreign", Severity: "warning", Text: "another"}, {Code: "lost", Severity: "error"}},
		Stranded:  []api.Stranded{{ContainerID: "c1", IfName: "eth0"}, {ContainerID: "c1", IfName: "eth1"}, {ContainerID: "c2", IfName: "eth0"}},
	}, "/metrics")
	if code != http.StatusOK {
		t.Fatalf("status %d", code)
	}
	const want = `# TYPE tenure_addresses gauge
tenure_addresses{kind="cooling"} 2
tenure_addresses{kind="total"} 253
tenure_addresses{kind="used"} 7
# TYPE tenure_build_info gauge
tenure_build_info{goversion="GO",version="v1"} 1
# TYPE tenure_dataplane_passes_total counter
tenure_dataplane_passes_total 7
# TYPE tenure_dataplane_writes_total counter
tenure_dataplane_writes_total{kind="route-set"} 8
# TYPE tenure_del_queue gauge
tenure_del_queue 2
# TYPE tenure_etcd_endpoint_healthy gauge
tenure_etcd_endpoint_healthy{endpoint="http://a"} 1
tenure_etcd_endpoint_healthy{endpoint="http://b"} 0
# TYPE tenure_etcd_transactions_total counter
tenure_etcd_transactions_total{outcome="succeeded"} 6
# TYPE tenure_fence_drops_total counter
tenure_fence_drops_total{reason="closed"} 9
tenure_fence_drops_total{reason="token"} 0
# TYPE tenure_lease_cycles_total counter
tenure_lease_cycles_total{outcome="denied"} 0
tenure_lease_cycles_total{outcome="proven"} 5
tenure_lease_cycles_total{outcome="unanswered"} 1
# TYPE tenure_lease_last_proof_seconds gauge
tenure_lease_last_proof_seconds 3
# TYPE tenure_lease_proofs_total counter
tenure_lease_proofs_total 4
# TYPE tenure_lease_remaining_seconds gauge
tenure_lease_remaining_seconds 12.5
# TYPE tenure_lease_ttl_seconds gauge
tenure_lease_ttl_seconds 15
# TYPE tenure_peers gauge
tenure_peers{state="conflict"} 1
tenure_peers{state="pending"} 0
tenure_peers{state="programmed"} 2
tenure_peers{state="unreachable"} 0
# TYPE tenure_problem gauge
tenure_problem{code="foreign",severity="warning"} 1
tenure_problem{code="lost",severity="error"} 1
# TYPE tenure_ready gauge
tenure_ready 1
# TYPE tenure_state gauge
tenure_state{state="fenced"} 0
tenure_state{state="held"} 0
tenure_state{state="lost"} 0
tenure_state{state="refused"} 0
tenure_state{state="starting"} 0
tenure_state{state="unproven"} 1
tenure_state{state="waiting"} 0
# TYPE tenure_stranded_addresses gauge
tenure_stranded_addresses 3
# TYPE tenure_stranded_pods gauge
tenure_stranded_pods 2
# TYPE tenure_watch_missed_total counter
tenure_watch_missed_total{kind="delete"} 1
tenure_watch_missed_total{kind="put"} 0
`
	if diff := cmp.Diff(want, strings.ReplaceAll(own(got), runtime.Version(), "GO")); diff != "" {
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
	if strings.Contains(got, "tenure_lease_remaining") || strings.Contains(got, "tenure_lease_ttl") {
		t.Errorf("a node without a lease tells about one:\n%s", got)
	}
	if !strings.Contains(got, `tenure_state{state="starting"} 1`) {
		t.Errorf("metrics lack the state:\n%s", got)
	}
}

// TestMetricsOfCertificates: what is left of each, also when nothing is.
func TestMetricsOfCertificates(t *testing.T) {
	now := time.Now()
	h, err := metricsMux(Sources{Status: okStatus, Times: NewTimes(), Counts: func() Counts {
		return Counts{Certificates: map[string]time.Time{"etcd-cafile": now.Add(time.Hour), "etcd-certfile": now.Add(-time.Hour)}}
	}})
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for flag, want := range map[string]float64{"etcd-cafile": 3600, "etcd-certfile": -3600} {
		_, text, _ := strings.Cut(w.Body.String(), `tenure_certificate_remaining_seconds{flag="`+flag+`"} `)
		text, _, _ = strings.Cut(text, "\n")
		if got, err := strconv.ParseFloat(text, 64); err != nil || math.Abs(got-want) > 60 {
			t.Errorf("--%s ends in %q seconds, want about %g", flag, text, want)
		}
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
	if err := ServeMetrics(t.Context(), l.Addr().String(), Sources{Status: okStatus, Times: NewTimes()}); err == nil {
		t.Error("it serves on a port that is taken")
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- ServeMetrics(ctx, "127.0.0.1:0", Sources{Status: okStatus, Times: NewTimes()}) }()
	cancel()
	if err := <-done; err != nil {
		t.Errorf("ServeMetrics after its context: %v", err)
	}
}
