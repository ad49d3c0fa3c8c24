// Command labctl keeps a lab running to look around in: make lab-up, lab-down.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/tenure-cni/tenure/test/lab"
	"golang.org/x/sys/unix"
)

// network is what the first node births the cluster with.
const network = `{"Network":"10.5.0.0/16","LeaseTTL":"60s"}`

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer cancel()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "labctl:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("labctl", flag.ContinueOnError)
	nodes := flags.Int("nodes", 3, "up: how many nodes")
	bin := flags.String("bin", "", "up: directory of the programs (default: $TENURE_BIN, else the checkout's bin)")
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "labctl [flags] up | down [ID]\n\nWithout ID, down removes every lab that up left running.")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch verb := flags.Arg(0); {
	case verb == "up" && flags.NArg() == 1:
		return up(ctx, *bin, *nodes)
	case verb == "down" && flags.NArg() <= 2:
		return down(flags.Arg(1))
	}
	flags.Usage()
	return fmt.Errorf("want up or down, got %q", flags.Args())
}

func up(ctx context.Context, bin string, count int) error {
	if bin == "" {
		found, err := lab.FindBin()
		if err != nil {
			return err
		}
		bin = found
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	l, err := lab.New(ctx, lab.Options{Bin: bin, Log: os.Stdout, Detached: true})
	if err != nil {
		return err
	}
	if err := populate(ctx, l, count); err != nil {
		fmt.Fprintf(os.Stderr, "lab %s is left as it is, to look into: labctl down %s removes it\n", l.ID(), l.ID())
		return err
	}
	return explain(l, bin)
}

// populate starts the nodes, the first with etcd inside, and a pod on each.
func populate(ctx context.Context, l *lab.Lab, count int) error {
	for i := range count {
		n, err := l.AddNode(ctx, fmt.Sprintf("n%d", i+1))
		if err != nil {
			return err
		}
		var args []string
		if i == 0 {
			url := fmt.Sprintf("http://%s:2379", n.Addr)
			l.SetEndpoints(url)
			args = []string{"--etcd-embedded", "--etcd-embedded-listen=" + url, "--new-cluster", "--network-config=" + network}
		}
		if err := n.Start(ctx, args...); err != nil {
			return err
		}
	}
	for _, n := range l.Nodes() {
		if err := n.WaitReady(ctx); err != nil {
			return err
		}
		if _, err := n.AddPod(ctx, "a", lab.PodOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// explain prints how to look around.
func explain(l *lab.Lab, bin string) error {
	var b strings.Builder
	nodes := l.Nodes()
	if len(nodes) == 0 {
		return nil
	}
	first, ns := nodes[0], "tl"+l.ID()+"-"
	fmt.Fprintf(&b, "\nThe lab %s runs. As root:\n\n", l.ID())
	for _, n := range nodes {
		fmt.Fprintf(&b, "  %s/tenurectl --socket %s status\n", bin, n.Socket)
	}
	fmt.Fprintf(&b, "\n  ip netns exec %s bash                       a shell on node %s (%s)\n", first.Name(), first.Host, first.Addr)
	fmt.Fprintf(&b, "  ip netns exec %sp-%s.a ip addr              its pod\n", ns, first.Host)
	fmt.Fprintf(&b, "  ip netns exec %sp-%s.a ping %s   from the pod to the world outside\n", ns, first.Host, l.OutsideAddr())
	fmt.Fprintf(&b, "  less %s\n\nmake lab-down ends it.\n", first.LogFile())
	_, err := fmt.Print(b.String())
	return err
}

func down(id string) error {
	removed, err := lab.Remove(id)
	for _, each := range removed {
		fmt.Println("removed lab", each)
	}
	if err == nil && len(removed) == 0 && id != "" {
		return fmt.Errorf("no lab %s was left running", id)
	}
	return err
}
