package server

import (
	"context"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tenure-cni/tenure/daemon/api"
)

// The parts of a verb that Times tells apart.
const (
	// PartCall is the whole of it in the daemon, from a request that has been
	// read to its answer.
	PartCall = "call"
	// PartLedger is the change of the ledger, the wait for its lock and the
	// write of the file included.
	PartLedger = "ledger"
	// PartAttach is the work on the pod's interface in the kernel.
	PartAttach = "attach"
)

// Times keeps how long the CNI verbs and their parts take, those of both
// plugins together, as the metric tenure_cni_seconds, and how they ended, as
// tenure_cni_calls_total. What a verb has done by
// the daemon itself counts for that verb: the undo of an ADD and what GC frees
// are a DEL's ledger and attach. It is safe for concurrent use.
type Times struct {
	seconds *prometheus.HistogramVec
	calls   *prometheus.CounterVec
}

// NewTimes returns a Times without any sample.
func NewTimes() *Times {
	return &Times{seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "tenure_cni_seconds",
		Help: "Seconds that a CNI verb took in the daemon, and what of it went to the ledger and to the interface.",
		// From a part of a healthy ADD to what the binary waits at most.
		Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
	}, []string{"verb", "part"}), calls: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tenure_cni_calls_total",
		Help: "CNI calls that the daemon answered, by verb and code; 0 is success.",
	}, []string{"verb", "code"})}
}

// Took notes a part of a verb that began at a time and is over now. It is made
// to be deferred.
func (t *Times) Took(verb, part string, began time.Time) {
	t.seconds.WithLabelValues(verb, part).Observe(time.Since(began).Seconds())
}

// ended notes how a call was answered.
func (t *Times) ended(verb string, resp *api.Response) {
	code := uint64(0)
	if resp != nil && resp.Error != nil {
		code = uint64(resp.Error.Code)
	}
	t.calls.WithLabelValues(verb, strconv.FormatUint(code, 10)).Inc()
}

// Verb returns f, timed as the whole of a verb.
func (t *Times) Verb(name string, f Verb) Verb {
	return func(ctx context.Context, r *api.Request) *api.Response {
		began := time.Now()
		resp := f(ctx, r)
		t.Took(name, PartCall, began)
		t.ended(name, resp)
		return resp
	}
}

// Giving is Verb for a use case whose answer is delivered: it is timed up to
// the answer, not to the receipt.
func (t *Times) Giving(name string, f Giving) Giving {
	return func(ctx context.Context, r *api.Request, deliver func(*api.Response) error) {
		began := time.Now()
		f(ctx, r, func(resp *api.Response) error {
			t.Took(name, PartCall, began)
			t.ended(name, resp)
			return deliver(resp)
		})
	}
}
