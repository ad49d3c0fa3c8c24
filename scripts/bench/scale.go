package main

import (
	"context"
	"flag"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/test/lab"
)

// scaleParts are the parts of "make bench-scale".
const scaleParts = "starts,peers,fleet"

// scale is how large the parts apart are.
type scale struct {
	nodes, starts sizes
	peers, alone  int
	window        time.Duration
}

func (s *scale) flags(f *flag.FlagSet) {
	s.nodes, s.starts = sizes{1000, 5000}, sizes{10, 20, 30}
	f.Var(&s.nodes, "nodes", "fleet: how many lease engines, one fleet after the other")
	f.IntVar(&s.alone, "alone", 100, "fleet: how many lease engines that read each for itself, 0 is none")
	f.DurationVar(&s.window, "window", time.Minute, "fleet: how long they are watched idle")
	f.IntVar(&s.peers, "peers", 5000, "peers: how many peers one daemon has")
	f.Var(&s.starts, "starts", "starts: how many daemons start at once, one cluster after the other")
}

// sizes is a flag: numbers, separated by commas.
type sizes []int

// String implements flag.Value.
func (s *sizes) String() string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint([]int(*s)), " ", ","), "[]")
}

// Set implements flag.Value.
func (s *sizes) Set(text string) error {
	*s = nil
	for one := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(one)
		if err != nil || n < 1 || n > 1<<14 {
			return fmt.Errorf("%q is no number from 1 to %d", one, 1<<14)
		}
		*s = append(*s, n)
	}
	return nil
}

// load is what the members of an etcd have done since their start, together.
type load struct {
	at time.Time
	// calls are those begun, by method; a stream is one.
	calls map[string]int
	// onWatches are the messages of clients on watches.
	onWatches float64
	// writes are raft's entries, counted once; revisions those of the store.
	writes    float64
	revisions int64
	sentMB    float64
	cpu       float64 // seconds
}

// loadOf reads it. What is counted by all members alike is taken of the first.
func loadOf(ctx context.Context, c *clientv3.Client, members []*lab.Etcd) (load, error) {
	l := load{at: time.Now(), calls: map[string]int{}}
	resp, err := c.Get(ctx, "any")
	if err != nil {
		return l, fmt.Errorf("read the revision of etcd: %w", err)
	}
	l.revisions = resp.Header.Revision
	for _, m := range members {
		select {
		case <-m.Process().Done():
			continue
		default:
		}
		text, err := m.Metrics(ctx)
		if err != nil {
			return l, err
		}
		calls, err := m.Requests(ctx)
		if err != nil {
			return l, err
		}
		for method, n := range calls {
			l.calls[method] += n
		}
		ticks, err := processTicks(m.Process().Pid())
		if err != nil {
			return l, err
		}
		l.cpu += ticks / 100
		l.onWatches += sum(text, `grpc_server_msg_received_total\{[^}]*grpc_method="Watch"[^}]*\}`)
		l.sentMB += sum(text, `etcd_network_client_grpc_sent_bytes_total`) / (1 << 20)
		l.writes = max(l.writes, sum(text, `etcd_server_proposals_applied_total`))
	}
	return l, nil
}

// sum adds the figures of a metric, whose name with its labels fits.
func sum(text []byte, name string) (all float64) {
	for _, m := range regexp.MustCompile(`(?m)^`+name+` (\S+)$`).FindAllSubmatch(text, -1) {
		if v, err := strconv.ParseFloat(string(m[1]), 64); err == nil {
			all += v
		}
	}
	return all
}

// all is how many calls there were.
func (l load) all() (n int) {
	for _, calls := range l.calls {
		n += calls
	}
	return n
}

// since is what was done after another reading; at is how long that is.
func (l load) since(before load) load {
	d := load{calls: map[string]int{}, onWatches: l.onWatches - before.onWatches, writes: l.writes - before.writes,
		revisions: l.revisions - before.revisions, sentMB: l.sentMB - before.sentMB, cpu: l.cpu - before.cpu}
	for method, n := range l.calls {
		if more := n - before.calls[method]; more != 0 {
			d.calls[method] = more
		}
	}
	return d
}
