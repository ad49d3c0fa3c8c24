package lab

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"time"
)

// MetricsListen is the flag that Node.Page and Node.Times need: a daemon of the
// lab has no metrics otherwise.
const MetricsListen = "--metrics-listen=" + metricsAddr

const metricsAddr = "127.0.0.1:9475"

// Page fetches "/metrics", "/healthz" or "/readyz" of the node's daemon, which
// was started with MetricsListen.
func (n *Node) Page(ctx context.Context, path string) (code int, page string, err error) {
	code, b, err := fetch(ctx, n.NS, "http://"+metricsAddr+path)
	if err != nil {
		return code, "", fmt.Errorf("read %s of tenured on %s: %w", path, n.Host, err)
	}
	return code, string(b), nil
}

// VerbPart names a part of a CNI verb as the metric tenure_cni_seconds does:
// "ADD" and "ledger", for instance.
type VerbPart struct{ Verb, Part string }

// Took is how often a part of a verb has been done since the daemon's start,
// and how long that took in all.
type Took struct {
	Calls int
	Time  time.Duration
}

// Since is what has been done after an earlier look.
func (t Took) Since(earlier Took) Took { return Took{t.Calls - earlier.Calls, t.Time - earlier.Time} }

// Times reads what the node's daemon, started with MetricsListen, says of the
// CNI verbs it has served.
func (n *Node) Times(ctx context.Context) (map[VerbPart]Took, error) {
	_, text, err := n.Page(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	all, err := verbTimes([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("read metrics of tenured on %s: %w", n.Host, err)
	}
	return all, nil
}

// verbTimes takes them out of metrics in text form.
func verbTimes(text []byte) (map[VerbPart]Took, error) {
	line := regexp.MustCompile(`(?m)^tenure_cni_seconds_(sum|count)\{part="(\w+)",verb="(\w+)"\} (\S+)$`)
	all := map[VerbPart]Took{}
	for _, m := range line.FindAllSubmatch(text, -1) {
		v, err := strconv.ParseFloat(string(m[4]), 64)
		if err != nil {
			return nil, err
		}
		key := VerbPart{Verb: string(m[3]), Part: string(m[2])}
		took := all[key]
		if string(m[1]) == "sum" {
			took.Time = time.Duration(v * float64(time.Second))
		} else {
			took.Calls = int(v)
		}
		all[key] = took
	}
	return all, nil
}
