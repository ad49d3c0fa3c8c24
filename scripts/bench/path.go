package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/lease"
	"github.com/tenure-cni/tenure/test/lab"
	"golang.org/x/sys/unix"
)

// Columns that goals are about.
const (
	cpuPerGiB  = "CPU s/GiB"
	ownPerGiB  = "own CPU s/GiB"
	packetCost = "UDP µs each"
	askCost    = "ask p50 µs"
	ownPerDial = "own CPU ms/1000"
)

// traffic is how much one turn sends.
type traffic struct {
	// volume is that of one TCP transfer, in GiB.
	volume               float64
	packets, connections int
}

func (v *traffic) flags(f *flag.FlagSet) {
	f.Float64Var(&v.volume, "volume", 2, "path, paths: what one transfer over TCP moves, in GiB")
	f.IntVar(&v.packets, "packets", 100_000, "paths: how many small packets one turn sends")
	f.IntVar(&v.connections, "connections", 1500, "paths: how many connections one turn makes")
}

// path is one contender for packets: a way from one namespace to another.
type path struct {
	name     string
	from, to *lab.NS
	addr     netip.Addr
	// set makes the devices as the contender has them, for one turn; what it
	// returns undoes that. nil is nothing to do.
	set func(context.Context) (undo func(context.Context) error, err error)
	// dear: the turn sends only a fraction of the volume.
	dear bool
}

const dearness = 4

// pathPart is the short form of pathsPart: one stream and the round trip, on the
// paths that matter most.
func pathPart(ctx context.Context, b *bench) error {
	return b.apart(ctx, "path", 1, func(l *lab.Lab, c *lab.EtcdCluster) error {
		f, err := newField(ctx, b, l, c)
		if err != nil {
			return err
		}
		t := newTable("Paths")
		if err := f.turns(ctx, t, f.main(), func(p path) error {
			return errors.Join(p.send(ctx, t, f.b.traffic.volume, 1), p.ask(t))
		}); err != nil {
			return err
		}
		return t.print(os.Stdout)
	})
}

// pathsPart measures throughput, CPU time per GiB, small packets, the round trip
// and new connections: on the raw underlay, on devices made by hand with and
// without rules, and on Tenure's.
func pathsPart(ctx context.Context, b *bench) error {
	return b.apart(ctx, "paths", 1, func(l *lab.Lab, c *lab.EtcdCluster) error {
		f, err := newField(ctx, b, l, c)
		if err != nil {
			return err
		}
		t, dials := newTable("Paths"), newTable("New connections through masquerade")
		if err := f.turns(ctx, t, f.all(), func(p path) error { return f.whole(ctx, p, t) }); err != nil {
			return err
		}
		if err := f.turns(ctx, dials, f.outward(), func(p path) error { return p.dial(dials, b.traffic.connections) }); err != nil {
			return err
		}
		crowd := newTable("Tenure, vxlan, as it grows")
		if !b.plainOnly {
			if err := f.grow(ctx, c, crowd); err != nil {
				return err
			}
			f.judge(t, crowd)
		}
		return errors.Join(t.print(os.Stdout), dials.print(os.Stdout), crowd.print(os.Stdout))
	})
}

// turns lets each path have its turn in each round, another one first each time.
func (f *field) turns(ctx context.Context, t *table, paths []path, measure func(path) error) error {
	for _, p := range paths {
		t.row(p.name)
	}
	for round := range f.b.rounds {
		for _, p := range rotated(paths, round) {
			if err := p.turn(ctx, measure); err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
		}
	}
	return nil
}

func (p path) turn(ctx context.Context, measure func(path) error) (err error) {
	if p.set != nil {
		undo, failed := p.set(ctx)
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, undo(ctx)) }()
	}
	waiting, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	if err := lab.WaitPing(waiting, p.from, p.addr); err != nil {
		return err
	}
	return measure(p)
}

// whole is all that is measured on one path.
func (f *field) whole(ctx context.Context, p path, t *table) error {
	volume := f.b.traffic.volume
	if p.dear {
		volume /= dearness
	}
	return errors.Join(p.send(ctx, t, volume, 1), p.send(ctx, t, volume, 4), p.flood(t, f.b.traffic.packets), p.ask(t))
}

// field is where paths are measured.
type field struct {
	b *bench
	l *lab.Lab
	// plain has no rules and no bridge-netfilter, direct no vxlan besides;
	// flannel has flannel's rules and bridge-netfilter; masq one rule.
	plain, direct, flannel, masq *pair
	// tenure and tenureDirect run Tenure, with bridge-netfilter; nil without.
	tenure, tenureDirect *pair
	// txOn says how tenured leaves its vxlan device.
	txOn bool
}

func newField(ctx context.Context, b *bench, l *lab.Lab, c *lab.EtcdCluster) (*field, error) {
	f := &field{b: b, l: l}
	for _, one := range []struct {
		name            string
		to              **pair
		bridgeNetfilter bool
		more            []string
	}{
		{"plain", &f.plain, false, []string{overVxlan}},
		{"direct", &f.direct, false, []string{overLink}},
		{"flannel", &f.flannel, true, []string{overVxlan, flannelRules}},
		{"masq", &f.masq, true, []string{overVxlan, oneRule}},
	} {
		var err error
		if *one.to, err = makePair(ctx, l, one.name, one.bridgeNetfilter, one.more...); err != nil {
			return nil, fmt.Errorf("%s: %w", one.name, err)
		}
	}
	if b.plainOnly {
		return f, nil
	}
	if err := bornWith(ctx, c, conf.DefaultEtcdPrefix, peersConfig); err != nil {
		return nil, err
	}
	var err error
	if f.tenure, err = tenurePair(ctx, l, "t", conf.DefaultEtcdPrefix); err != nil {
		return nil, err
	}
	out, err := f.tenure.hosts[0].Exec(ctx, "ethtool", "-k", vxlanDevice)
	if err != nil {
		return nil, err
	}
	f.txOn = strings.Contains(out, "tx-checksum-ip-generic: on")
	fmt.Printf("tenured leaves tx checksum offload of %s on: %v\n", vxlanDevice, f.txOn)
	return f, f.addDirect(ctx, c)
}

const (
	vxlanDevice  = "tenure.1"
	directPrefix = "/tenure/direct"
	directConfig = `{"Network":"10.7.0.0/16","Backend":{"Type":"vxlan","DirectRouting":true}}`
)

// addDirect leaves tenureDirect out where the config is refused.
func (f *field) addDirect(ctx context.Context, c *lab.EtcdCluster) error {
	if err := bornWith(ctx, c, directPrefix, directConfig); err != nil {
		return err
	}
	p, err := tenurePair(ctx, f.l, "d", directPrefix)
	if errors.Is(err, errRefused) {
		fmt.Fprintln(os.Stderr, "bench: no path with DirectRouting:", err)
		return nil
	}
	f.tenureDirect = p
	return err
}

// errRefused says that this build takes no such network config.
var errRefused = errors.New("the network config is refused")

func bornWith(ctx context.Context, c *lab.EtcdCluster, prefix, config string) (err error) {
	client, err := c.Client()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	_, err = lease.Init(ctx, client, prefix, []byte(config))
	return err
}

// tenurePair is two nodes of one cluster with pods.
func tenurePair(ctx context.Context, l *lab.Lab, name, prefix string) (*pair, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var p pair
	for i := range p.hosts {
		n, err := l.AddNode(ctx, fmt.Sprintf("%s%d", name, i+1))
		if err != nil {
			return nil, err
		}
		p.hosts[i] = n
		if err := shell(ctx, n, setBridgeNetfilter(true)); err != nil {
			return nil, err
		}
		if err := n.Start(ctx, "--etcd-prefix="+prefix, "--address-cooldown=1s"); err != nil {
			return nil, err
		}
		s, err := n.WaitState(ctx, "is ready, or refuses its config", func(s *api.Status) bool { return s.Ready || refused(s) })
		if err != nil {
			return nil, err
		}
		if refused(s) {
			return nil, fmt.Errorf("%w: %s", errRefused, s.Reason)
		}
	}
	for i, host := range []int{0, 0, 1} {
		if err := settled(ctx, p.hosts[host], 1); err != nil {
			return nil, err
		}
		pod, err := p.hosts[host].AddPod(ctx, fmt.Sprintf("path%d", i), lab.PodOptions{})
		if err != nil {
			return nil, err
		}
		p.pods[i] = pod
	}
	return &p, nil
}

func refused(s *api.Status) bool {
	return slices.ContainsFunc(s.Problems, func(p api.Problem) bool { return p.Code == "config-refused" })
}

// same is between the pods of the first host, across to the second's.
func (p *pair) same(name string) path {
	return path{name: name, from: p.pods[0].NS, to: p.pods[1].NS, addr: p.pods[1].IP}
}

func (p *pair) across(name string) path {
	return path{name: name, from: p.pods[0].NS, to: p.pods[2].NS, addr: p.pods[2].IP}
}

// outside is from a pod to a host beyond the router.
func (f *field) outside(p *pair, name string) path {
	return path{name: name, from: p.pods[0].NS, to: f.l.Outside, addr: f.l.OutsideAddr()}
}

// Rows that goals are about.
const (
	rawRow          = "raw underlay"
	plainSame       = "plain, same node"
	plainVxlan      = "plain, vxlan"
	plainSlow       = "plain, vxlan, tx off"
	plainBridged    = "plain, vxlan, bridge-nf on"
	plainSameOn     = "plain, same node, bridge-nf on"
	plainDirect     = "plain, direct"
	masqSame        = "one NAT rule, same node"
	masqVxlan       = "one NAT rule, vxlan"
	flannelSame     = "flannel's rules, same node"
	flannelVxlan    = "flannel's rules, vxlan"
	flannelSlow     = "flannel's rules, vxlan, tx off"
	tenureSame      = "tenure, same node"
	tenureVxlan     = "tenure, vxlan"
	tenureSlow      = "tenure, vxlan, tx off"
	tenureOpen      = "tenure, vxlan, no fence"
	tenureDirectRow = "tenure, direct"
)

// main are the paths of the short form.
func (f *field) main() []path {
	paths := []path{
		{name: rawRow, from: f.plain.hosts[0].NS, to: f.plain.hosts[1].NS, addr: f.plain.hosts[1].Addr},
		f.plain.same(plainSame), f.plain.across(plainVxlan), f.flannel.across(flannelVxlan),
	}
	if f.tenure != nil {
		paths = append(paths, f.tenure.same(tenureSame), f.tx(f.tenure, tenureVxlan, true))
	}
	return paths
}

// all are those of the long form.
func (f *field) all() []path {
	paths := append(f.main(),
		f.bridged(f.plain.same(plainSameOn)), f.bridged(f.plain.across(plainBridged)), f.handTx(f.plain, plainSlow),
		f.direct.across(plainDirect),
		f.masq.same(masqSame), f.masq.across(masqVxlan),
		f.flannel.same(flannelSame), f.handTx(f.flannel, flannelSlow))
	if f.tenure != nil {
		paths = append(paths, f.tx(f.tenure, tenureSlow, false), f.open(tenureOpen))
	}
	if f.tenureDirect != nil {
		paths = append(paths, f.tenureDirect.across(tenureDirectRow))
	}
	return paths
}

// outward are the paths out of the pod network.
func (f *field) outward() []path {
	paths := []path{f.outside(f.masq, "one NAT rule"), f.outside(f.flannel, "flannel's rules")}
	if f.tenure != nil {
		paths = append(paths, f.outside(f.tenure, "tenure"))
	}
	return paths
}

// bridged turns bridge-netfilter on for the turn.
func (f *field) bridged(p path) path {
	p.set = func(ctx context.Context) (func(context.Context) error, error) {
		return func(ctx context.Context) error { return both(ctx, f.plain.hosts, setBridgeNetfilter(false)) },
			both(ctx, f.plain.hosts, setBridgeNetfilter(true))
	}
	return p
}

// handTx leaves checksums to the kernel for the turn, and so segments too.
func (f *field) handTx(on *pair, name string) path {
	p := on.across(name)
	p.dear = true
	p.set = func(ctx context.Context) (func(context.Context) error, error) {
		return func(ctx context.Context) error { return both(ctx, on.hosts, "ethtool -K vx0 tx on >/dev/null") },
			both(ctx, on.hosts, "ethtool -K vx0 tx off >/dev/null")
	}
	return p
}

// tx is the same on Tenure's devices, whose daemons are stopped for the turn
// where they would have it otherwise.
func (f *field) tx(on *pair, name string, offload bool) path {
	p := on.across(name)
	p.dear = !offload
	if offload != f.txOn {
		p.set = frozen(on, setTx(offload), setTx(f.txOn))
	}
	return p
}

func setTx(on bool) string {
	if on {
		return "ethtool -K " + vxlanDevice + " tx on >/dev/null"
	}
	return "ethtool -K " + vxlanDevice + " tx off >/dev/null"
}

// open takes the fence off for the turn. The daemons put it back.
func (f *field) open(name string) path {
	p := f.tenure.across(name)
	p.set = frozen(f.tenure, setTx(true)+`
tc filter del dev `+vxlanDevice+` ingress
tc filter del dev `+vxlanDevice+` egress`, setTx(f.txOn))
	return p
}

// frozen changes what the daemons keep, while they are stopped; afterwards it
// waits until their fence stands.
func frozen(p *pair, change, back string) func(context.Context) (func(context.Context) error, error) {
	signal := func(s os.Signal) error {
		var err error
		for _, n := range p.hosts {
			err = errors.Join(err, n.Signal(s))
		}
		return err
	}
	undo := func(ctx context.Context) error {
		err := errors.Join(both(ctx, p.hosts, back), signal(unix.SIGCONT))
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		for _, n := range p.hosts {
			err = errors.Join(err, lab.Eventually(ctx, "the fence is back", func() error { return fenced(ctx, n) }))
		}
		return err
	}
	return func(ctx context.Context) (func(context.Context) error, error) {
		if err := errors.Join(signal(unix.SIGSTOP), both(ctx, p.hosts, change)); err != nil {
			return nil, errors.Join(err, undo(ctx))
		}
		return undo, nil
	}
}

func fenced(ctx context.Context, n *lab.Node) error {
	for _, way := range []string{"ingress", "egress"} {
		out, err := n.Exec(ctx, "tc", "filter", "show", "dev", vxlanDevice, way)
		if err != nil {
			return err
		}
		if !strings.Contains(out, "tenure_") {
			return fmt.Errorf("%s of %s on %s has no fence", way, vxlanDevice, n.Host)
		}
	}
	return nil
}
