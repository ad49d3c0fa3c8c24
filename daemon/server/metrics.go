package server

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tenure-cni/tenure/daemon/api"
)

// Sources are what /metrics is made of, asked at each scrape. There is no
// second account of anything: what status knows is taken from it.
type Sources struct {
	// Status makes the node's status object.
	Status func() *api.Status
	// Counts reads what the daemon's parts have counted; nil is without.
	Counts func() Counts
	// Times are the CNI verbs.
	Times *Times
}

// Counts are what status has no room for. A map that is nil is left out, and so
// is what a part has not begun to count.
type Counts struct {
	// Cycles and Transactions are those of the lease, by their end; Proofs are
	// the cycles that moved the deadline.
	Cycles, Transactions map[string]uint64
	Proofs               uint64
	// Missed are the events that etcd's watch lost, by kind.
	Missed map[string]uint64
	// Passes and Writes are the data plane's, the latter by kind.
	Passes uint64
	Writes map[string]uint64
	// Drops are the fence's, by reason.
	Drops map[string]uint64
	// Queued is the number of DELs on disk.
	Queued int
	// Certificates are the ends of the certificates in use, by their flag.
	Certificates map[string]time.Time
}

// states are all values of the label state, so that each is always present.
var states = []api.State{api.StateStarting, api.StateWaiting, api.StateRefused, api.StateHeld, api.StateUnproven, api.StateFenced, api.StateLost}

// metric is one of ours: its name, what it is and its labels.
type metric struct{ desc *prometheus.Desc }

func newMetric(name, help string, labels ...string) metric {
	return metric{prometheus.NewDesc(name, help, labels, nil)}
}

func (m metric) gauge(ch chan<- prometheus.Metric, v float64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(m.desc, prometheus.GaugeValue, v, labels...)
}

func (m metric) counter(ch chan<- prometheus.Metric, v uint64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(m.desc, prometheus.CounterValue, float64(v), labels...)
}

// counters is a metric with one label, of which each value has a count.
func (m metric) counters(ch chan<- prometheus.Metric, all map[string]uint64) {
	for label, v := range all {
		m.counter(ch, v, label)
	}
}

// collector turns status and counts into metrics at each scrape.
type collector struct {
	from Sources

	build, ready, state, problems             metric
	ttl, left, proof                          metric
	peers, addresses, strayAddresses, strays  metric
	endpoint, certificate, queued             metric
	cycles, proofs, txns, passes, writes, cut metric
	missed                                    metric
}

func newCollector(from Sources) *collector {
	return &collector{
		from:           from,
		build:          newMetric("tenure_build_info", "1, with the version of the daemon and of the Go it was built with.", "version", "goversion"),
		ready:          newMetric("tenure_ready", "1 while a pod can be added, as /readyz says it, else 0."),
		state:          newMetric("tenure_state", "1 for the state the node is in, 0 for the others.", "state"),
		problems:       newMetric("tenure_problem", "1 for each problem that stands.", "code", "severity"),
		ttl:            newMetric("tenure_lease_ttl_seconds", "Length of the lease as etcd granted it."),
		left:           newMetric("tenure_lease_remaining_seconds", "Seconds until the kernel closes the overlay by itself."),
		proof:          newMetric("tenure_lease_last_proof_seconds", "Seconds since the last proof of the lease, counted from before it was asked for; -1 without one since the daemon started."),
		peers:          newMetric("tenure_peers", "Peers by their state in the kernel; all that are wanted there are the sum without unreachable.", "state"),
		addresses:      newMetric("tenure_addresses", "Addresses of the held subnet.", "kind"),
		strayAddresses: newMetric("tenure_stranded_addresses", "Pod addresses on subnets the node no longer holds."),
		strays:         newMetric("tenure_stranded_pods", "Pods with an address on a subnet the node no longer holds."),
		endpoint:       newMetric("tenure_etcd_endpoint_healthy", "1 where the etcd endpoint answered when it was asked last, else 0.", "endpoint"),
		certificate:    newMetric("tenure_certificate_remaining_seconds", "Seconds until the certificate in the file of a flag ends; below 0 it has.", "flag"),
		queued:         newMetric("tenure_del_queue", "DELs on disk that wait to be done."),
		cycles:         newMetric("tenure_lease_cycles_total", "Cycles of the lease by their end.", "outcome"),
		proofs:         newMetric("tenure_lease_proofs_total", "Cycles that moved the deadline in the kernel."),
		txns:           newMetric("tenure_etcd_transactions_total", "Transactions sent to etcd by their end.", "outcome"),
		missed:         newMetric("tenure_watch_missed_total", "Events that etcd's watch did not tell of, found and repaired by a list, by kind.", "kind"),
		passes:         newMetric("tenure_dataplane_passes_total", "Passes of the data plane: the kernel read, and compared with what is wanted."),
		writes:         newMetric("tenure_dataplane_writes_total", "Changes that the data plane made in the kernel, by kind.", "kind"),
		cut:            newMetric("tenure_fence_drops_total", "Frames that the fence dropped since its maps were made, by reason.", "reason"),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	c.standing(ch, c.from.Status())
	if c.from.Counts != nil {
		c.counted(ch, c.from.Counts())
	}
}

// standing is what status says.
func (c *collector) standing(ch chan<- prometheus.Metric, s *api.Status) {
	c.build.gauge(ch, 1, s.Version, runtime.Version())
	c.ready.gauge(ch, number(s.Ready))
	for _, state := range states {
		c.state.gauge(ch, number(s.State == state), string(state))
	}
	type standing struct{ code, severity string }
	told := map[standing]bool{} // two problems may have one code
	for _, p := range s.Problems {
		if one := (standing{p.Code, p.Severity}); !told[one] {
			told[one] = true
			c.problems.gauge(ch, 1, p.Code, p.Severity)
		}
	}
	if s.Lease != nil {
		c.ttl.gauge(ch, float64(s.Lease.TTLSeconds))
		c.left.gauge(ch, s.Lease.RemainingSeconds)
		c.proof.gauge(ch, s.Lease.LastProofSecondsAgo)
	}
	count := map[string]int{api.PeerProgrammed: 0, api.PeerPending: 0, api.PeerConflict: 0, api.PeerUnreachable: 0}
	for _, p := range s.Peers {
		count[p.State]++
	}
	for state, v := range count {
		c.peers.gauge(ch, float64(v), state)
	}
	for _, e := range s.Etcd.Endpoints {
		if e.Since != "" { // it has been asked
			c.endpoint.gauge(ch, number(e.Healthy), e.URL)
		}
	}
	c.pods(ch, s)
}

func (c *collector) pods(ch chan<- prometheus.Metric, s *api.Status) {
	c.addresses.gauge(ch, float64(s.Addresses.Total), "total")
	c.addresses.gauge(ch, float64(s.Addresses.Used), "used")
	c.addresses.gauge(ch, float64(s.Addresses.Cooling), "cooling")
	c.strayAddresses.gauge(ch, float64(len(s.Stranded)))
	strays := map[string]bool{}
	for _, p := range s.Stranded {
		strays[p.ContainerID] = true
	}
	c.strays.gauge(ch, float64(len(strays)))
}

// counted is what status has no room for.
func (c *collector) counted(ch chan<- prometheus.Metric, n Counts) {
	c.cycles.counters(ch, n.Cycles)
	c.proofs.counter(ch, n.Proofs)
	c.txns.counters(ch, n.Transactions)
	c.missed.counters(ch, n.Missed)
	c.passes.counter(ch, n.Passes)
	c.writes.counters(ch, n.Writes)
	c.cut.counters(ch, n.Drops)
	c.queued.gauge(ch, float64(n.Queued))
	for flag, end := range n.Certificates {
		c.certificate.gauge(ch, time.Until(end).Seconds(), flag)
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// ServeMetrics answers /metrics, /healthz (the daemon lives) and /readyz (an
// ADD would be served) on addr until ctx ends.
func ServeMetrics(ctx context.Context, addr string, from Sources) error {
	h, err := metricsMux(from)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("listen for metrics: %w", err)
	}
	return serve(ctx, l, &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second})
}

func metricsMux(from Sources) (http.Handler, error) {
	r := prometheus.NewRegistry()
	for _, c := range []prometheus.Collector{
		newCollector(from), from.Times.seconds, from.Times.calls,
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
		s := from.Status()
		if !s.Ready {
			http.Error(w, string(s.State)+": "+s.Reason, http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	})
	return m, nil
}
