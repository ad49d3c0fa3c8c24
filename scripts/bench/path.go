package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/tenure-cni/tenure/test/lab"
)

// volume is what one contender sends in one turn, in GiB.
const volume = 2

// path is one contender for packets: a way from one namespace to another.
type path struct {
	name string
	from lab.Execer
	to   *lab.NS
	addr netip.Addr
}

// pathPart measures throughput, the whole machine's CPU time per GiB (the
// steadier of the two) and the round trip.
func pathPart(ctx context.Context, b *bench) error {
	paths, err := b.paths(ctx)
	if err != nil {
		return err
	}
	for _, p := range paths {
		if err := lab.WaitPing(ctx, p.from, p.addr); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	t := newTable("Paths")
	for range b.rounds {
		for _, p := range paths {
			if err := p.send(ctx, t); err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
			if err := p.roundTrip(ctx, t); err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
		}
	}
	return t.print(os.Stdout)
}

func (b *bench) paths(ctx context.Context) ([]path, error) {
	plain, err := plainPaths(ctx, b.lab)
	if err != nil || b.plainOnly {
		return plain, err
	}
	var pods []*lab.Pod
	for i, n := range []*lab.Node{b.nodes[0], b.nodes[0], b.nodes[1]} {
		pod, err := n.AddPod(ctx, fmt.Sprintf("path%d", i), lab.PodOptions{})
		if err != nil {
			return nil, err
		}
		pods = append(pods, pod)
	}
	return append(plain,
		path{"tenure, same node", pods[0], pods[1].NS, pods[1].IP},
		path{"tenure, vxlan", pods[0], pods[2].NS, pods[2].IP},
	), nil
}

// send moves the volume once over TCP.
func (p path) send(ctx context.Context, t *table) error {
	server := make(chan error, 1)
	serving, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		_, err := p.to.Exec(serving, "iperf3", "-s", "-1")
		server <- err
	}()
	listens, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := lab.Eventually(listens, "iperf3 listens", func() error {
		// A connection would use up the server's one test; the socket table does not.
		out, err := p.to.Exec(ctx, "ss", "-Hltn", "sport = :5201")
		if err == nil && out == "" {
			err = fmt.Errorf("nothing on port 5201 yet")
		}
		return err
	}); err != nil {
		stop()
		return errors.Join(err, <-server)
	}
	before, err := cpuSeconds()
	if err != nil {
		return err
	}
	out, err := p.from.Exec(ctx, "iperf3", "-c", p.addr.String(), "-n", strconv.Itoa(volume)+"G", "-J")
	if err != nil {
		return err
	}
	after, err := cpuSeconds()
	if err != nil {
		return err
	}
	var report struct {
		End struct {
			Received struct {
				Rate float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		return fmt.Errorf("decode report of iperf3: %w", err)
	}
	t.add(p.name, "Gbit/s", report.End.Received.Rate/1e9)
	t.add(p.name, "CPU s/GiB", (after-before)/volume)
	return <-server
}

// roundTrip takes the median of some hundred echo requests.
func (p path) roundTrip(ctx context.Context, t *table) error {
	out, err := p.from.Exec(ctx, "ping", "-n", "-c", "300", "-i", "0.002", p.addr.String())
	if err != nil {
		return err
	}
	var times []float64
	for _, m := range regexp.MustCompile(`time=([0-9.]+) ms`).FindAllStringSubmatch(out, -1) {
		v, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			return fmt.Errorf("parse ping: %w", err)
		}
		times = append(times, v)
	}
	if len(times) == 0 {
		return fmt.Errorf("ping printed no times: %s", out)
	}
	t.add(p.name, "ping p50 ms", median(times))
	return nil
}

// cpuSeconds is what all cores together have worked since boot, from
// /proc/stat, whose unit is 1/100 s.
func cpuSeconds() (float64, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("read CPU time: %w", err)
	}
	first, _, _ := strings.Cut(string(b), "\n")
	var sum float64
	for i, field := range strings.Fields(first) {
		// user nice system idle iowait irq softirq; what comes after is not work
		// of this machine, or counted in user already.
		if i == 0 || i == 4 || i == 5 || i > 7 {
			continue
		}
		v, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return 0, fmt.Errorf("read CPU time: %w", err)
		}
		sum += v
	}
	return sum / 100, nil
}
