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
	"path/filepath"
	"runtime/pprof"
	"slices"
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
	bin, dir  string
	scale     scale
	traffic   traffic
}

// part is one table of figures.
type part struct {
	name string
	run  func(context.Context, *bench) error
	// apart: it makes labs of its own, takes minutes, and runs only if it is
	// asked for.
	apart bool
}

func parts() []part {
	return []part{
		{"daemon", daemonPart, false}, {"calls", callsPart, false}, {"crowd", crowdPart, false}, {"full", fullPart, false}, {"path", pathPart, false},
		{"spread", spreadPart, false}, {"join", joinPart, false}, {"etcd", etcdPart, false},
		{"plane", planePart, false},
		{"paths", pathsPart, true}, {"starts", startsPart, true}, {"peers", peersPart, true}, {"fleet", fleetPart, true},
	}
}

// wanted are the parts that -only names, or all that are not apart.
func wanted(only string) []part {
	return slices.DeleteFunc(parts(), func(p part) bool {
		if only == "" {
			return p.apart
		}
		return !strings.Contains(","+only+",", ","+p.name+",")
	})
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
	only := flags.String("only", "", "which parts, separated by commas; empty is all but paths and "+scaleParts)
	plainOnly := flags.Bool("plain-only", false, "leave Tenure out and measure only what it is compared with")
	var sizes scale
	sizes.flags(flags)
	var turn traffic
	turn.flags(flags)
	profile := flags.String("cpuprofile", "", "file for the CPU profile of this process, engines of a fleet included")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *profile != "" {
		f, err := os.Create(*profile)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	bin, err := lab.FindBin()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	dir, err := os.MkdirTemp(memory, "tenure-bench-")
	if err != nil {
		return fmt.Errorf("directory of the lab: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	b := &bench{rounds: *rounds, plainOnly: *plainOnly, bin: bin, dir: dir, scale: sizes, traffic: turn}
	chosen := wanted(*only)
	if slices.ContainsFunc(chosen, func(p part) bool { return !p.apart }) {
		if b.lab, err = lab.New(ctx, lab.Options{Bin: bin, Dir: filepath.Join(dir, "lab")}); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, b.lab.Close()) }()
		if err := b.start(ctx); err != nil {
			return err
		}
	}
	for _, p := range chosen {
		if e := p.run(ctx, b); e != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", p.name, e))
		}
		if err != nil && (!p.apart || ctx.Err() != nil) {
			return err // the others stand on the same lab
		}
	}
	return errors.Join(err, printGoals(os.Stdout, b.goals))
}

// apart runs f with a lab and an etcd of so many members that are for it alone.
func (b *bench) apart(ctx context.Context, name string, members int, f func(*lab.Lab, *lab.EtcdCluster) error) (err error) {
	l, err := lab.New(ctx, lab.Options{Bin: b.bin, Dir: filepath.Join(b.dir, name)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close(), os.RemoveAll(l.Dir())) }()
	c, err := l.StartEtcdCluster(ctx, members)
	if err != nil {
		return err
	}
	return f(l, c)
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
