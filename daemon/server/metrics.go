package server

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tenure-cni/tenure/daemon/api"
)

// states are all values of the label state, so that each is always present.
var states = []api.State{api.StateStarting, api.StateWaiting, api.StateRefused, api.StateHeld, api.StateUnproven, api.StateFenced, api.StateLost}

// collector turns the status object into metrics at each scrape.
type collector struct {
	status func() *api.Status
	state  *prometheus.Desc
	left   *prometheus.Desc
	proof  *prometheus.Desc
	peers  *prometheus.Desc
	pods   *prometheus.Desc
	lost   *prometheus.Desc
	strays *prometheus.Desc
}

func newCollector(status func() *api.Status) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("tenure_"+name, help, labels, nil)
	}
	return &collector{
		status: status,
		state:  desc("state", "1 for the state the node is in, 0 for the others.", "state"),
		left:   desc("lease_remaining_seconds", "Seconds until the kernel closes the overlay by itself."),
		proof:  desc("lease_last_proof_seconds", "Seconds since the last proof of the lease, counted from before it was asked for."),
		peers:  desc("peers", "Peers by their state in the kernel.", "state"),
		pods:   desc("addresses", "Addresses of the held subnet.", "kind"),
		lost:   desc("stranded_addresses", "Pod addresses on subnets the node no longer holds."),
		strays: desc("stranded_pods", "Pods with an address on a subnet the node no longer holds."),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	s := c.status()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, state := range states {
		v := 0.0
		if s.State == state {
			v = 1
		}
		gauge(c.state, v, string(state))
	}
	if s.Lease != nil {
		gauge(c.left, s.Lease.RemainingSeconds)
		gauge(c.proof, s.Lease.LastProofSecondsAgo)
	}
	count := map[string]int{api.PeerProgrammed: 0, api.PeerPending: 0, api.PeerConflict: 0, api.PeerUnreachable: 0}
	for _, p := range s.Peers {
		count[p.State]++
	}
	for state, v := range count {
		gauge(c.peers, float64(v), state)
	}
	gauge(c.pods, float64(s.Addresses.Total), "total")
	gauge(c.pods, float64(s.Addresses.Used), "used")
	gauge(c.pods, float64(s.Addresses.Cooling), "cooling")
	gauge(c.lost, float64(len(s.Stranded)))
	strays := map[string]bool{}
	for _, p := range s.Stranded {
		strays[p.ContainerID] = true
	}
	gauge(c.strays, float64(len(strays)))
}

// ServeMetrics answers /metrics, /healthz (the daemon lives) and /readyz (an
// ADD would be served) on addr until ctx ends.
func ServeMetrics(ctx context.Context, addr string, status func() *api.Status, times *Times) error {
	h, err := metricsMux(status, times)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("listen for metrics: %w", err)
	}
	return serve(ctx, l, &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second})
}

func metricsMux(status func() *api.Status, times *Times) (http.Handler, error) {
	r := prometheus.NewRegistry()
	for _, c := range []prometheus.Collector{
		newCollector(status), times.seconds,
		// What the process needs of the machine: go_goroutines,
		// process_open_fds and so on, under the names that everybody knows.
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	m := http.NewServeMux()
	m.Handle("GET /metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{}))
	m.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	m.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		s := status()
		if !s.Ready {
			http.Error(w, string(s.State)+": "+s.Reason, http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	})
	return m, nil
}
