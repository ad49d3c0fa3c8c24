package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/test/lab"
)

// network has room for four nodes, and leases short enough to watch one end.
const network = `{"Network":"10.5.0.0/22","SubnetLen":24,"LeaseTTL":"5s","Backend":{"Type":"vxlan"}}`

// limit bounds the whole demo.
const limit = 3 * time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, limit)
	err := run(ctx, os.Stdout, os.Getenv("KEEP") == "1")
	cancel()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "\ndemo: not as told:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, keep bool) (err error) {
	bin, err := lab.FindBin()
	if err != nil {
		return err
	}
	l, err := lab.New(ctx, lab.Options{Bin: bin, Detached: keep})
	if err != nil {
		return err
	}
	d := &demo{lab: l, out: out, began: time.Now()}
	defer func() {
		if d.etcd != nil {
			_ = d.etcd.Close()
		}
		if keep {
			d.explain(bin)
			return
		}
		if closeErr := l.Close(); err == nil {
			err = closeErr
		}
	}()
	return d.tell(ctx)
}

// demo is the story's cast.
type demo struct {
	lab   *lab.Lab
	out   io.Writer
	began time.Time
	etcd  *clientv3.Client

	n1, n2, n3, n4 *lab.Node
	pods           map[string]*lab.Pod // by node.pod
}

func (d *demo) tell(ctx context.Context) error {
	for _, chapter := range []struct {
		title string
		tell  func(context.Context) error
	}{
		{"Three nodes lease their subnets", d.nodes},
		{"Pods reach each other and the world", d.paths},
		{"The outage: a node goes away, its subnet is given to another, it comes back", d.outage},
		{"The end", d.final},
	} {
		d.title(chapter.title)
		if err := chapter.tell(ctx); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(d.out, "\nEverything as told, in %s.\n", time.Since(d.began).Round(100*time.Millisecond))
	return err
}

func (d *demo) title(text string) { _, _ = fmt.Fprintf(d.out, "\n== %s\n", text) }

// step runs one step and prints what it saw, or why it is not as told.
func (d *demo) step(what string, f func() (string, error)) error {
	began := time.Now()
	saw, err := f()
	took := time.Since(began).Seconds()
	if err != nil {
		_, _ = fmt.Fprintf(d.out, "FAIL %5.2fs  %s: %v\n", took, what, err)
		return fmt.Errorf("%s: %w", what, err)
	}
	if saw != "" {
		what += ": " + saw
	}
	_, _ = fmt.Fprintf(d.out, "  ok %5.2fs  %s\n", took, what)
	return nil
}

// explain tells how to look around in what KEEP=1 left.
func (d *demo) explain(bin string) {
	_, _ = fmt.Fprintf(d.out, "\nKEEP=1: lab %s is left running. As root:\n\n", d.lab.ID())
	for _, n := range d.lab.Nodes() {
		_, _ = fmt.Fprintf(d.out, "  %s/tenurectl --socket %s status\n", bin, n.Socket)
	}
	for _, n := range d.lab.Nodes() {
		_, _ = fmt.Fprintf(d.out, "  ip netns exec %s bash    # node %s (%s)\n", n.Name(), n.Host, n.Addr)
	}
	for name, p := range d.pods {
		_, _ = fmt.Fprintf(d.out, "  ip netns exec %s bash    # pod %s (%s)\n", p.Name(), name, p.IP)
	}
	_, _ = fmt.Fprintln(d.out, "\nmake lab-down stops it.")
}
