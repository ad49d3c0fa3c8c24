package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenure-cni/tenure/test/lab"
)

const (
	// half and crowd are how many pods come at once, lone how many one after
	// the other.
	half  = 50
	crowd = 100
	lone  = 20
	// reference is the contender that the ratios are to.
	reference = "bridge + host-local"
)

// caller is one contender for CNI calls: a plugin on a node of its own.
type caller struct {
	name   string
	node   *lab.Node
	plugin string
	config []byte // nil is the node's own conflist
	pods   []*lab.Pod
	failed int64 // calls among those at once
}

// callsPart times ADD and DEL of the binaries, as a runtime calls them.
func callsPart(ctx context.Context, b *bench) error {
	callers, err := b.callers(ctx)
	if err != nil {
		return err
	}
	for _, c := range callers {
		for i := range crowd {
			pod, err := c.node.Sandbox(ctx, fmt.Sprintf("b%d", i), lab.PodOptions{})
			if err != nil {
				return err
			}
			c.pods = append(c.pods, pod)
		}
	}
	t := newTable("CNI calls, ms")
	for range b.rounds {
		for _, c := range callers {
			if err := c.oneByOne(ctx, t); err != nil {
				return err
			}
			for _, n := range []int{half, crowd} {
				if err := c.atOnce(ctx, t, n); err != nil {
					return err
				}
			}
		}
	}
	for _, c := range callers {
		t.add(c.name, "failures", float64(c.failed))
	}
	if !b.plainOnly {
		t.ratio("tenure", reference)
	}
	if err := t.print(os.Stdout); err != nil {
		return err
	}
	var errs []error
	for _, c := range callers {
		for _, pod := range c.pods {
			errs = append(errs, pod.Vanish())
		}
	}
	return errors.Join(errs...)
}

func (b *bench) callers(ctx context.Context) ([]*caller, error) {
	var callers []*caller
	if !b.plainOnly {
		callers = append(callers, &caller{name: "tenure", node: b.nodes[0], plugin: "tenure"})
	}
	for i, masq := range []bool{false, true} {
		n, err := b.lab.AddNode(ctx, fmt.Sprintf("ref%d", i+1))
		if err != nil {
			return nil, err
		}
		name := reference
		if masq {
			name += ", ipMasq"
		}
		callers = append(callers, &caller{name: name, node: n, plugin: "tools/bridge", config: fmt.Appendf(nil,
			`{"cniVersion":"1.0.0","name":"ref","type":"bridge","bridge":"cni0","isGateway":true,"ipMasq":%t,
			  "ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.5.9.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}}`,
			masq, filepath.Join(n.StateDir, "host-local"))})
	}
	return callers, nil
}

func (c *caller) call(ctx context.Context, verb string, pod *lab.Pod) error {
	answer, err := c.node.CNI(ctx, lab.CNICall{
		Plugin: c.plugin, Verb: verb, Config: c.config,
		ContainerID: pod.ContainerID(), Netns: pod.Path(), IfName: "eth0",
	})
	if err != nil {
		return err
	}
	if answer.Exit != 0 {
		return fmt.Errorf("%s by %s: %w", verb, c.name, answer.Err)
	}
	return nil
}

// oneByOne takes the mean of a few calls, one after the other.
func (c *caller) oneByOne(ctx context.Context, t *table) error {
	for _, verb := range []string{"ADD", "DEL"} {
		began := time.Now()
		for _, pod := range c.pods[:lone] {
			if err := c.call(ctx, verb, pod); err != nil {
				return err
			}
		}
		t.add(c.name, verb, ms(time.Since(began))/lone)
	}
	return nil
}

// atOnce takes the time until the last of n simultaneous calls is answered.
func (c *caller) atOnce(ctx context.Context, t *table, n int) error {
	for _, verb := range []string{"ADD", "DEL"} {
		began := time.Now()
		var group sync.WaitGroup
		var failed atomic.Int64
		for _, pod := range c.pods[:n] {
			group.Go(func() {
				if err := c.call(ctx, verb, pod); err != nil {
					failed.Add(1)
				}
			})
		}
		group.Wait()
		t.add(c.name, fmt.Sprintf("%d×%s", n, verb), ms(time.Since(began)))
		c.failed += failed.Load()
	}
	return ctx.Err()
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
