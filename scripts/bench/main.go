// Command bench measures Tenure beside what it should be compared with, on one
// machine in one run: the reference plugins for CNI calls, a plain kernel path
// without any daemon for packets. What only Tenure has it measures alone: what
// its daemons ask of etcd, how they join at once, how a change spreads. Absolute
// figures drift with the machine, so the contenders take turns within each
// round, and medians are printed with the least and the greatest, or with the
// 99th percentile where many calls were timed. At the end stand the goals.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/tenure-cni/tenure/test/lab"
	"golang.org/x/sys/unix"
)

// bench is what the parts share.
type bench struct {
	lab    *lab.Lab
	rounds int
	// plainOnly leaves Tenure out: what remains says how steady the machine is.
	plainOnly bool
	nodes     []*lab.Node // run Tenure, empty with plainOnly
	made      []*caller
	goals     []goal
}

// part is one table of figures.
type part struct {
	name string
	run  func(context.Context, *bench) error
}

func parts() []part {
	return []part{
		{"daemon", daemonPart}, {"calls", callsPart}, {"crowd", crowdPart}, {"full", fullPart}, {"path", pathPart},
		{"spread", spreadPart}, {"join", joinPart}, {"etcd", etcdPart},
		{"plane", planePart},
	}
}

// memory is a tmpfs, as /run is on a node: there Tenure has its ledger, and
// here host-local has its files too.
const memory = "/dev/shm"

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer cancel()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	rounds := flags.Int("rounds", 5, "how often each contender takes its turn")
	only := flags.String("only", "daemon,calls,crowd,full,path,spread,join,etcd,plane", "which parts, separated by commas")
	plainOnly := flags.Bool("plain-only", false, "leave Tenure out and measure only what it is compared with")
	if err := flags.Parse(args); err != nil {
		return err
	}
	bin, err := lab.FindBin()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp(memory, "tenure-bench-")
	if err != nil {
		return fmt.Errorf("directory of the lab: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	l, err := lab.New(ctx, lab.Options{Bin: bin, Dir: dir})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	b := &bench{lab: l, rounds: *rounds, plainOnly: *plainOnly}
	if err := b.start(ctx); err != nil {
		return err
	}
	for _, p := range parts() {
		if !strings.Contains(","+*only+",", ","+p.name+",") {
			continue
		}
		if err := p.run(ctx, b); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return printGoals(os.Stdout, b.goals)
}

// start brings up an etcd and two nodes that run Tenure.
func (b *bench) start(ctx context.Context) error {
	if b.plainOnly {
		return nil
	}
	if _, err := b.lab.StartEtcd(ctx); err != nil {
		return err
	}
	for _, name := range []string{"t1", "t2"} {
		n, err := b.lab.AddNode(ctx, name)
		if err != nil {
			return err
		}
		if err := b.daemon(ctx, n); err != nil {
			return err
		}
		b.nodes = append(b.nodes, n)
	}
	return nil
}

// daemon starts a node's daemon and waits until it is ready. The subnets below
// SubnetMin are for peers that are in etcd only.
func (b *bench) daemon(ctx context.Context, n *lab.Node) error {
	if err := n.Start(ctx, "--new-cluster", `--network-config={"Network":"10.5.0.0/16","SubnetMin":"10.5.250.0"}`, "--address-cooldown=1s", lab.MetricsListen); err != nil {
		return err
	}
	return n.WaitReady(ctx)
}
