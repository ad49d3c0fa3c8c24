package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/tenure-cni/tenure/test/lab"
)

const (
	// lone is how many calls of each verb come one after the other in a round.
	lone = 40
	// reference is the contender that the ratios are to.
	reference = "bridge + host-local"
	// ours is Tenure's row.
	ours = "tenure"
)

// caller is one contender for CNI calls: a plugin on a node of its own.
type caller struct {
	name   string
	node   *lab.Node
	plugin string
	config []byte
	// checks says that it has CHECK, status that it has STATUS.
	checks, status bool
	pods           []*lab.Pod
	failed         map[string]int // calls among those at once, by verb
}

// callsPart times each verb of the binaries, as a runtime calls them, with
// nothing else going on. The contenders take turns call by call, and every time
// another one is first.
func callsPart(ctx context.Context, b *bench) (err error) {
	callers, err := b.callers(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, vanish(callers)) }()
	for _, c := range callers {
		if err := c.sandboxes(ctx, lone); err != nil {
			return err
		}
	}
	t, parts := newTable("One call, ms: p50 / p99").cells(quantiles), newTable("Where tenure's time goes, ms: p50 / p99").cells(quantiles)
	for range b.rounds {
		if err := oneByOne(ctx, callers, t); err != nil {
			return err
		}
		if b.plainOnly {
			continue
		}
		if err := callers[0].takeApart(ctx, parts); err != nil {
			return err
		}
	}
	if b.plainOnly {
		return t.print(os.Stdout)
	}
	t.ratio(ours, reference)
	b.goals = append(b.goals,
		goal{"one ADD, of the reference's", 0.45, t.ratioOf(ours, reference, "ADD")},
		goal{"one ADD, p99 of p50", 3, t.at(ours, "ADD", 99) / t.at(ours, "ADD", 50)},
		goal{"one DEL, of the reference's", 0.5, t.ratioOf(ours, reference, "DEL")},
		goal{"STATUS, ms", 5, t.at(ours, "STATUS", 50)})
	return errors.Join(t.print(os.Stdout), parts.print(os.Stdout))
}

// oneByOne takes a sample of every verb of every contender for each pod.
func oneByOne(ctx context.Context, callers []*caller, t *table) error {
	results := map[*lab.Pod][]byte{}
	for _, verb := range []string{"ADD", "CHECK", "STATUS", "DEL"} {
		for i := range lone {
			for _, c := range rotated(callers, i) {
				if verb == "CHECK" && !c.checks || verb == "STATUS" && !c.status {
					continue
				}
				answer, took, err := c.call(ctx, verb, c.pods[i], results[c.pods[i]])
				if err != nil {
					return err
				}
				if verb == "ADD" {
					results[c.pods[i]] = answer.Stdout
				}
				t.add(c.name, verb, ms(took))
			}
		}
	}
	return nil
}

// takeApart splits each verb of Tenure. The daemon says what it and its parts
// took. VERSION is a start of the same program that ends before it talks to
// anybody; what is left of the whole is the way to the daemon and back.
func (c *caller) takeApart(ctx context.Context, t *table) error {
	for _, verb := range []string{"ADD", "CHECK", "STATUS", "DEL"} {
		for _, pod := range c.pods[:lone/2] {
			_, exec, err := c.call(ctx, "VERSION", pod, nil)
			if err != nil {
				return err
			}
			before, err := c.node.Times(ctx)
			if err != nil {
				return err
			}
			_, whole, err := c.call(ctx, verb, pod, nil)
			if err != nil {
				return err
			}
			after, err := c.node.Times(ctx)
			if err != nil {
				return err
			}
			part := func(name string) time.Duration {
				key := lab.VerbPart{Verb: verb, Part: name}
				return after[key].Since(before[key]).Time
			}
			call, ledger, attach := part("call"), part("ledger"), part("attach")
			t.add(verb, "whole", ms(whole))
			t.add(verb, "exec", ms(exec))
			t.add(verb, "socket", ms(whole-exec-call))
			t.add(verb, "ledger", ms(ledger))
			t.add(verb, "netlink", ms(attach))
			t.add(verb, "rest of the daemon", ms(call-ledger-attach))
		}
	}
	return nil
}

// callers are the contenders, on nodes that are made at the first call.
func (b *bench) callers(ctx context.Context) ([]*caller, error) {
	if b.made != nil {
		return b.made, nil
	}
	var callers []*caller
	if !b.plainOnly {
		n := b.nodes[0]
		callers = append(callers, &caller{name: ours, node: n, plugin: "tenure", checks: true, status: true, config: fmt.Appendf(nil,
			`{"cniVersion":"1.1.0","name":"tenure","type":"tenure","tenure":{"socket":%q}}`, n.Socket)})
	}
	for i, of := range []struct {
		name, plugin string
		config       func(dir string) ([]byte, error)
	}{
		{reference, "tools/bridge", bridgeConfig(false)},
		{reference + ", ipMasq", "tools/bridge", bridgeConfig(true)},
		{"chain of three*", "tools/delegating", chainConfig},
	} {
		n, err := b.lab.AddNode(ctx, fmt.Sprintf("ref%d", i+1))
		if err != nil {
			return nil, err
		}
		config, err := of.config(n.StateDir)
		if err != nil {
			return nil, err
		}
		callers = append(callers, &caller{name: of.name, node: n, plugin: of.plugin, config: config, checks: of.plugin == "tools/bridge"})
	}
	for _, c := range callers {
		c.failed = map[string]int{}
	}
	fmt.Println("\n* a plugin that delegates to bridge, which calls host-local: as many programs as flannel's users have, but not flannel's own")
	b.made = callers
	return callers, nil
}

func bridgeConfig(masq bool) func(dir string) ([]byte, error) {
	return func(dir string) ([]byte, error) {
		return fmt.Appendf(nil, `{"cniVersion":"1.0.0","name":"ref","type":"bridge","bridge":"cni0","isGateway":true,"ipMasq":%t,
			"ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.5.9.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}}`,
			masq, dir+"/host-local"), nil
	}
}

// chainConfig is what flannel's users have, with the daemon's file.
func chainConfig(dir string) ([]byte, error) {
	file := dir + "/subnet.env"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("write subnet file: %w", err)
	}
	const subnet = "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.9.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n"
	if err := os.WriteFile(file, []byte(subnet), 0o600); err != nil {
		return nil, fmt.Errorf("write subnet file: %w", err)
	}
	return fmt.Appendf(nil, `{"cniVersion":"1.0.0","name":"ref","type":"delegating","subnetFile":%q,"dataDir":%q,
		"delegate":{"bridge":"cni0","hairpinMode":true,"isDefaultGateway":true}}`, file, dir+"/chain"), nil
}

// sandboxes makes sure that there are n pods to call for.
func (c *caller) sandboxes(ctx context.Context, n int) error {
	for i := len(c.pods); i < n; i++ {
		pod, err := c.node.Sandbox(ctx, fmt.Sprintf("b%d", i), lab.PodOptions{})
		if err != nil {
			return err
		}
		c.pods = append(c.pods, pod)
	}
	return nil
}

// vanish removes the namespaces of all pods.
func vanish(callers []*caller) error {
	var errs []error
	for _, c := range callers {
		for _, pod := range c.pods {
			errs = append(errs, pod.Vanish())
		}
		c.pods = nil
	}
	return errors.Join(errs...)
}

// try makes one call with the result of the ADD, nil for none, and says how
// long it took. A call that the plugin refuses is no error.
func (c *caller) try(ctx context.Context, verb string, pod *lab.Pod, result []byte) (*lab.CNIAnswer, time.Duration, error) {
	config, err := withResult(c.config, result)
	if err != nil {
		return nil, 0, err
	}
	call := lab.CNICall{
		Plugin: c.plugin, Verb: verb, Config: config,
		ContainerID: pod.ContainerID(), Netns: pod.Path(), IfName: "eth0",
	}
	began := time.Now()
	answer, err := c.node.CNI(ctx, call)
	return answer, time.Since(began), err
}

// call is try for a call that has to succeed.
func (c *caller) call(ctx context.Context, verb string, pod *lab.Pod, result []byte) (*lab.CNIAnswer, time.Duration, error) {
	answer, took, err := c.try(ctx, verb, pod, result)
	if err == nil && answer.Exit != 0 {
		err = answer.Err
	}
	if err != nil {
		return nil, 0, fmt.Errorf("%s by %s: %w", verb, c.name, err)
	}
	return answer, took, nil
}

// withResult puts the result of an ADD into a configuration.
func withResult(config, result []byte) ([]byte, error) {
	if result == nil {
		return config, nil
	}
	var c map[string]json.RawMessage
	if err := json.Unmarshal(config, &c); err != nil {
		return nil, fmt.Errorf("decode configuration: %w", err)
	}
	c["prevResult"] = result
	return json.Marshal(c)
}

// rotated is all of them, another one first for each turn.
func rotated[T any](all []T, turn int) []T {
	first := turn % len(all)
	return append(append([]T(nil), all[first:]...), all[:first]...)
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
