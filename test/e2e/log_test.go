package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestWhatIsSeen: while etcd is away, which the node notices in every cycle, and
// while a DEL cannot be done, which each ADD tries, the log has a line for each
// fault and no more; metrics count all of it, and /readyz says what an ADD would.
func TestWhatIsSeen(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.Born(ctx, t, shortLease, "n1")
	n := c.Nodes[0]
	if err := n.Start(ctx, lab.MetricsListen); err != nil {
		t.Fatal(err)
	}
	cluster.WaitState(ctx, t, n, api.StateHeld)
	queueBad(t, n)
	for i := range 4 {
		cluster.Pod(ctx, t, n, fmt.Sprint("p", i))
	}
	if code, text := look(ctx, t, n, "/readyz"); code != http.StatusOK {
		t.Errorf("/readyz of a node that serves: %d %s", code, text)
	}
	m := newMeter(ctx, t, n)
	m.want(`tenure_del_queue`, 1)
	m.want(`tenure_cni_calls_total{code="0",verb="ADD"}`, 4)
	m.want(`tenure_state{state="held"}`, 1)
	m.want(`tenure_etcd_endpoint_healthy{endpoint="`+c.Etcd.URL()+`"}`, 1)

	c.Etcd.Kill()
	cluster.WaitState(ctx, t, n, api.StateFenced)
	for _, box := range cluster.Sandboxes(ctx, t, n, "late", 3) {
		if code := cluster.Code(cluster.Call(ctx, t, n, cluster.CallFor("ADD", box, "eth0"))); code != api.CodeTryAgain {
			t.Errorf("an ADD past the deadline ends with code %d", code)
		}
	}
	if code, text := look(ctx, t, n, "/readyz"); code != http.StatusServiceUnavailable || !strings.HasPrefix(text, "fenced: ") {
		t.Errorf("/readyz past the deadline: %d %s", code, text)
	}
	if code, _ := look(ctx, t, n, "/healthz"); code != http.StatusOK {
		t.Errorf("/healthz past the deadline: %d", code)
	}
	cluster.Eventually(ctx, t, 10*time.Second, "several cycles without an answer are counted", func() error {
		return newMeter(ctx, t, n).least(`tenure_lease_cycles_total{outcome="unanswered"}`, 4)
	})
	m = newMeter(ctx, t, n)
	m.want(`tenure_state{state="fenced"}`, 1)
	m.want(`tenure_lease_remaining_seconds`, 0)
	m.want(`tenure_problem{code="etcd-unreachable",severity="error"}`, 1)
	m.want(`tenure_cni_calls_total{code="11",verb="ADD"}`, 3)
	m.want(`tenure_etcd_endpoint_healthy{endpoint="`+c.Etcd.URL()+`"}`, 0)

	if err := c.Etcd.Start(ctx); err != nil {
		t.Fatal(err)
	}
	cluster.WaitState(ctx, t, n, api.StateHeld)
	if err := newMeter(ctx, t, n).least("tenure_lease_proofs_total", 2); err != nil {
		t.Error(err)
	}
	quietLog(t, n)
}

// queueBad puts into the queue what cannot be read, however often it is tried.
func queueBad(t *testing.T, n *lab.Node) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(api.QueueDir(n.Socket), "bad.json"), 0o700); err != nil {
		t.Fatal(err)
	}
}

// quietLog fails for each fault that the log has more than once. The test is
// shorter than a minute.
func quietLog(t *testing.T, n *lab.Node) {
	t.Helper()
	b, err := os.ReadFile(filepath.Clean(n.LogFile()))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	varies := regexp.MustCompile(`^time=\S+ | container=\S+|[0-9]+`)
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
			seen[varies.ReplaceAllString(line, "")]++
		}
	}
	for line, times := range seen {
		if times > 1 {
			t.Errorf("%d times in the log: %s", times, line)
		}
	}
	if !strings.Contains(string(b), "queued DELs remain") || !strings.Contains(string(b), "no proof from etcd") {
		t.Errorf("the log does not tell of the faults:\n%s", b)
	}
}

// look asks the metrics listener of a node.
func look(ctx context.Context, t *testing.T, n *lab.Node, path string) (code int, text string) {
	t.Helper()
	code, text, err := n.Page(ctx, path)
	if err != nil {
		t.Fatal(err)
	}
	return code, text
}

// meter is one scrape of a node.
type meter struct {
	t    *testing.T
	text string
}

func newMeter(ctx context.Context, t *testing.T, n *lab.Node) meter {
	t.Helper()
	_, text := look(ctx, t, n, "/metrics")
	return meter{t, text}
}

func (m meter) value(series string) (v float64, err error) {
	for line := range strings.Lines(m.text) {
		if rest, ok := strings.CutPrefix(line, series+" "); ok {
			_, err := fmt.Sscan(rest, &v)
			return v, err
		}
	}
	return 0, fmt.Errorf("no %s in the metrics", series)
}

func (m meter) want(series string, want float64) {
	m.t.Helper()
	if v, err := m.value(series); err != nil || v != want {
		m.t.Errorf("%s is %g, want %g (%v)", series, v, want, err)
	}
}

func (m meter) least(series string, least float64) error {
	v, err := m.value(series)
	if err == nil && v < least {
		err = fmt.Errorf("%s is %g, want %g at least", series, v, least)
	}
	return err
}
