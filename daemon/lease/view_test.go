package lease

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
)

// problemOf is the problem of a view with that code; the zero one if it has none.
func problemOf(v View, code string) api.Problem {
	for _, p := range v.Problems {
		if p.Code == code {
			return p
		}
	}
	return api.Problem{}
}

// TestClosedSince: the outage of pods begins when the overlay closes, not when
// the first proof did not come; until then they are served, and not a moment
// longer.
func TestClosedSince(t *testing.T) {
	t.Parallel()
	_, e, own := holder(t)
	e.unproven(own, errors.New("no answer"))
	away := e.etcdDown
	if text := problemOf(e.View(), "etcd-unreachable").Text; !strings.Contains(text, "pods are served for another 1m0s") {
		t.Errorf("before the deadline: %q", text)
	}
	h := *e.held
	h.since, h.deadline = time.Now().Add(-time.Hour), bootClock()-10*time.Second
	e.held = &h
	v := e.View()
	closed, err := time.Parse(time.RFC3339, problemOf(v, "fenced").Since)
	if ago := time.Since(closed); err != nil || v.State != api.StateFenced || ago < 9*time.Second || ago > 30*time.Second {
		t.Errorf("%s since %s (%v), it closed 10 s ago", v.State, closed, err)
	}
	p := problemOf(v, "etcd-unreachable")
	if strings.Contains(p.Text, "served") || p.Since != away.UTC().Format(time.RFC3339) {
		t.Errorf("after the deadline: %+v", p)
	}
}

// TestRestartedWhileEtcdIsAway: a daemon that has asked and got no answer does
// not say that it has not asked.
func TestRestartedWhileEtcdIsAway(t *testing.T) {
	t.Parallel()
	_, e, own := holder(t)
	own.unproven, own.since = errRestarted, time.Now()
	e.held = &own
	if r := e.View().Reason; !strings.Contains(r, "has not been asked yet") {
		t.Errorf("at the start: %q", r)
	}
	e.unreachable(errors.New("connection refused"))
	if r := e.View().Reason; !strings.Contains(r, "connection refused") || strings.Contains(r, "has not been asked") {
		t.Errorf("after the first question: %q", r)
	}
}

// TestMissingConfigSince: the config is missing since it went, whatever else
// happens in etcd meanwhile.
func TestMissingConfigSince(t *testing.T) {
	t.Parallel()
	_, e, _ := holder(t)
	e.cfg.Judge = func(conf.Network) error { return nil }
	s := shown(12, true)
	s.Config = Versioned[[]byte]{[]byte(fourSubnets), 12}
	e.adopt(s)
	e.adopt(shown(13, true))
	const before = "2026-01-02T03:04:05Z"
	p := e.problems[configMissing]
	if p.Since = before; p.Code == "" {
		t.Fatal("a config that is gone is no problem")
	}
	e.problems[configMissing] = p
	e.adopt(shown(14, true))
	if got := e.problems[configMissing].Since; got != before {
		t.Errorf("missing since %s, want %s", got, before)
	}
	s = shown(15, true)
	s.Config = Versioned[[]byte]{[]byte(fourSubnets), 15}
	e.adopt(s)
	if p := e.problems[configMissing]; p.Code != "" {
		t.Errorf("written again: %+v", p)
	}
}
