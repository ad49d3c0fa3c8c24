package fault

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
	"github.com/tenure-cni/tenure/test/lab/etcdproxy"
)

const (
	// churnEvery is about how often a node gets a pod or loses one, mostChurn how
	// many of these it has.
	churnEvery = 700 * time.Millisecond
	mostChurn  = 3
	// callTime bounds a CNI call; the plugin promises less.
	callTime = 35 * time.Second
	// lookEvery is how often a node is asked what it holds.
	lookEvery = 200 * time.Millisecond
)

// host is a node of a run: its daemon, its pods, its fence.
type host struct {
	*lab.Node
	run     *run
	clone   bool
	args    []string
	proxies []*etcdproxy.Proxy

	mu      sync.Mutex
	killed  map[*lab.Process]bool
	holds   netip.Prefix // as the daemon said last
	epoch   int64
	pods    []*pod
	number  int
	boots   int      // counts the beginnings and ends of reboots: odd is down
	watched bool     // the fence is being sampled
	closers []func() // of the fence
}

// pod is one that a run has added.
type pod struct {
	*lab.Pod
	addr  netip.Prefix
	leave func() // ends its part in the probes
	stays bool   // a resident
}

// start starts the daemon; should it end before it is killed, that is found.
func (h *host) start(ctx context.Context) error {
	if err := h.Start(ctx, h.args...); err != nil {
		return err
	}
	p := h.Process()
	go func() { // it ends with the lab at the latest
		<-p.Done()
		h.run.mu.Lock()
		over := h.run.over
		h.run.mu.Unlock()
		h.mu.Lock()
		killed := h.killed[p]
		h.mu.Unlock()
		if !over && !killed {
			h.run.violate(h.run.now(), "the daemon of %s ended by itself: %v: %s", h.Host, p.Wait(context.Background()), h.Logs(3))
		}
	}()
	return nil
}

// mark says that the daemon will be ended on purpose.
func (h *host) mark() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.killed == nil {
		h.killed = map[*lab.Process]bool{}
	}
	h.killed[h.Process()] = true
}

func (h *host) kill() {
	h.mark()
	h.Kill()
}

// greet waits until the node holds a subnet, and gives it its first pod.
func (h *host) greet(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, h.run.patience)
	defer cancel()
	if _, err := h.WaitState(ctx, "holds a subnet", func(s *api.Status) bool { return s.State == api.StateHeld }); err != nil {
		return err
	}
	h.look(ctx)
	return h.reside(ctx)
}

// look asks the daemon what it holds and begins to sample its fence as soon as
// there is one.
func (h *host) look(ctx context.Context) {
	s, err := h.Status(ctx)
	if err != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.holds, h.epoch = netip.Prefix{}, 0
	if p, err := netip.ParsePrefix(s.Subnet); err == nil && s.Lease != nil {
		h.holds, h.epoch = p, s.Lease.Epoch
	}
	if h.watched {
		return
	}
	f, err := cluster.FindFence(h.Pid())
	if err != nil {
		return
	}
	h.watched = true
	stop := h.run.sampler.Watch(h.Host, f.Read)
	h.closers = append(h.closers, func() {
		if stop != nil {
			stop()
		}
		_ = f.Close()
	})
}

// held is what the node holds, as far as is known.
func (h *host) held() (netip.Prefix, int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.holds, h.epoch
}

// every calls f until the run ends, each time that d has passed.
func (h *host) every(ctx context.Context, d time.Duration, f func()) {
	tick := time.NewTicker(d)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			f()
		case <-h.run.stop:
			return
		case <-ctx.Done():
			return
		}
	}
}

// live looks at the node and sees to it that it has a pod in what it holds: one
// that is stranded stays, and goes on sending.
func (h *host) live(ctx context.Context) {
	h.every(ctx, lookEvery, func() { h.furnish(ctx) })
}

func (h *host) furnish(ctx context.Context) {
	h.look(ctx)
	if h.lacks() {
		_ = h.reside(ctx) // the next look tries again, and the end tells
	}
}

// lacks says that no resident pod is in the subnet that the node holds.
func (h *host) lacks() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.holds.IsValid() && !slices.ContainsFunc(h.pods, func(p *pod) bool { return p.stays && h.holds.Contains(p.addr.Addr()) })
}

func (h *host) reside(ctx context.Context) error {
	_, err := h.add(ctx, true)
	return err
}

// churn adds and deletes pods.
func (h *host) churn(ctx context.Context) {
	h.every(ctx, churnEvery, func() {
		if passing := h.passing(); len(passing) >= mostChurn {
			h.del(ctx, passing[0])
			return
		}
		_, _ = h.add(ctx, false) // may be refused; what is wrong is noted
	})
}

// passing are the pods that do not stay, the oldest first.
func (h *host) passing() []*pod {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []*pod
	for _, p := range h.pods {
		if !p.stays {
			all = append(all, p)
		}
	}
	return all
}

// errBooting is for pods that nobody starts while the machine is off.
var errBooting = errors.New("the machine is rebooting")

// add makes a pod and lets it send.
func (h *host) add(ctx context.Context, stays bool) (*pod, error) {
	h.mu.Lock()
	h.number++
	name, boots := fmt.Sprint("p", h.number), h.boots
	h.mu.Unlock()
	if boots%2 != 0 {
		return nil, errBooting
	}
	box, err := h.Sandbox(ctx, name, lab.PodOptions{})
	if err != nil {
		return nil, err
	}
	p := &pod{Pod: box, stays: stays}
	call, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	addr, answer, err := cluster.Add(call, h.Node, box)
	if err == nil && answer.Exit != 0 {
		err = answer.Err
	}
	if err != nil {
		h.run.count(func() { h.run.counts.refused++ })
		h.del(ctx, p) // as any runtime does
		return nil, err
	}
	h.run.count(func() { h.run.counts.adds++ })
	p.addr = addr
	// Under which epoch the node holds that is not certain without asking it.
	p.leave, err = h.run.probes.Join(box.NS, h.Host, addr.Addr(), func() (netip.Prefix, int64) { return addr.Masked(), 0 })
	h.mu.Lock()
	if h.boots != boots {
		h.mu.Unlock()
		if p.leave != nil {
			p.leave()
		}
		return nil, p.Vanish()
	}
	for _, o := range h.pods {
		if o.addr.Addr() == addr.Addr() {
			h.run.violate(h.run.now(), "%s gave %s to %s while %s has it", h.Host, addr.Addr(), p.Pod.Pod, o.Pod.Pod)
		}
	}
	h.pods = append(h.pods, p)
	h.mu.Unlock()
	return p, err
}

// del ends a pod. DEL always succeeds, whatever else is broken.
func (h *host) del(ctx context.Context, p *pod) {
	h.mu.Lock()
	// The address may be another's as soon as the daemon has freed it.
	h.pods = slices.DeleteFunc(h.pods, func(o *pod) bool { return o == p })
	boots := h.boots
	h.mu.Unlock()
	if p.leave != nil {
		p.leave()
	}
	call, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	err := cluster.Delete(call, h.Node, p.Pod)
	h.run.count(func() { h.run.counts.dels++ })
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil && ctx.Err() == nil && h.boots == boots && boots%2 == 0 {
		h.run.violate(h.run.now(), "a DEL failed: %v", err)
	}
	_ = p.Vanish()
}

// forget is for a reboot, which takes all pods and the fence along.
func (h *host) forget() {
	h.mu.Lock()
	pods := h.pods
	h.pods, h.holds, h.epoch = nil, netip.Prefix{}, 0
	h.boots++
	h.mu.Unlock()
	for _, p := range pods {
		if p.leave != nil {
			p.leave()
		}
	}
	h.close()
}

func (h *host) close() {
	h.mu.Lock()
	closers := h.closers
	h.closers, h.watched = nil, false
	h.mu.Unlock()
	for _, f := range closers {
		f()
	}
}

// well is nil while the node holds a subnet, has all others as peers, and has a
// pod in what it holds.
func (h *host) well(ctx context.Context) error {
	s, err := h.Status(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", h.Host, err)
	}
	if s.State != api.StateHeld || !s.Ready {
		return fmt.Errorf("%s is %s, ready %t: %s; problems %+v", h.Host, s.State, s.Ready, s.Reason, s.Problems)
	}
	for _, o := range h.run.nodes() {
		held, _ := o.held()
		ok := o == h || slices.ContainsFunc(s.Peers, func(p api.Peer) bool {
			return p.Node == o.Host && p.Subnet == held.String() && p.State == api.PeerProgrammed
		})
		if !ok {
			return fmt.Errorf("%s has not programmed %s on %s: %+v", h.Host, o.Host, held, s.Peers)
		}
	}
	if h.lacks() {
		return fmt.Errorf("%s has no pod in %s", h.Host, s.Subnet)
	}
	return nil
}

// tables are what the node's kernel has of the overlay, for verdicts.
func (h *host) tables(ctx context.Context) string {
	peers, err := cluster.KernelPeers(ctx, h)
	held, epoch := h.held()
	text := fmt.Sprintf("%s (%s, epoch %d): %+v, %v", h.Host, held, epoch, peers, err)
	if f, err := cluster.FindFence(h.Pid()); err == nil {
		live, deadline, err := f.Read()
		text += fmt.Sprintf(", fence %s for %s, %v", live, deadline-cluster.BootTime(), err)
		_ = f.Close()
	}
	return text
}

// flow is what the node's kernel knows of the probes from one address to another,
// for verdicts: their connection, the way it takes, and twice, half a second apart,
// what has passed its devices and what the fence has dropped.
func (h *host) flow(ctx context.Context, from, to netip.Addr) string {
	text, err := h.Exec(ctx, "sh", "-c", fmt.Sprintf(`
grep -F ' src=%[1]s dst=%[2]s ' /proc/net/nf_conntrack
ip neigh show dev eth0
iptables-save -t mangle | grep DROP
ip route get %[2]s from %[1]s iif tenure0
for turn in 1 2; do
	grep tenure /proc/net/dev
	tc -s qdisc show dev tenure.1 | grep Sent
	sleep 0.5
done 2>&1`, from, to))
	if err != nil {
		text += err.Error()
	}
	if f, err := cluster.FindFence(h.Pid()); err == nil {
		tokens, err := f.Tokens()
		text += fmt.Sprintf("tokens %v, %v", tokens, err)
		_ = f.Close()
	}
	return strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n        ")
}

// kept is nil if ledger, kernel and daemon agree about which pods there are.
func (h *host) kept(ctx context.Context) error {
	h.mu.Lock()
	pods := make([]*lab.Pod, 0, len(h.pods))
	for _, p := range h.pods {
		pods = append(pods, p.Pod)
	}
	h.mu.Unlock()
	if err := h.agree(ctx, pods); err != nil {
		return fmt.Errorf("%s: %w", h.Host, err)
	}
	return nil
}

// agree is cluster.Only, where some of the pods may be stranded.
func (h *host) agree(ctx context.Context, pods []*lab.Pod) error {
	s, err := h.Status(ctx)
	if err != nil {
		return err
	}
	records, err := cluster.Records(h.Node)
	if err != nil {
		return err
	}
	ends, err := cluster.HostEnds(h.Node)
	if err != nil {
		return err
	}
	var errs []error
	if int(s.Addresses.Used)+len(s.Stranded) != len(pods) || len(records) != len(pods) || len(ends) != len(pods) {
		errs = append(errs, fmt.Errorf("%d pods live; %d addresses are in use and %d stranded, %d on record, %d interfaces",
			len(pods), s.Addresses.Used, len(s.Stranded), len(records), len(ends)))
	}
	seen := map[netip.Addr]string{}
	for _, p := range pods {
		kernel, err := cluster.PodAddrs(p, "eth0")
		if err != nil {
			errs = append(errs, err)
			continue
		}
		i := slices.IndexFunc(records, func(r cluster.Record) bool { return r.ContainerID == p.ContainerID() })
		if len(kernel) != 1 || i < 0 || len(records[i].Addresses) != 1 || records[i].Addresses[0].Addr() != kernel[0].Addr() {
			errs = append(errs, fmt.Errorf("%s has %v in the kernel, on record is %d of %+v", p.Pod, kernel, i, records))
			continue
		}
		if other, twice := seen[kernel[0].Addr()]; twice {
			errs = append(errs, fmt.Errorf("%s and %s both have %s", p.Pod, other, kernel[0].Addr()))
		}
		seen[kernel[0].Addr()] = p.Pod
	}
	return errors.Join(errs...)
}

// loud says what is wrong with the length of the log.
func (h *host) loud() string {
	lines := strings.Count(h.Logs(1<<20), "\n")
	if most := 400 + int(h.run.now()/time.Second)*15; lines > most {
		return fmt.Sprintf("the log of %s has %d lines after %s, want %d at most", h.Host, lines, h.run.now(), most)
	}
	return ""
}

func (r *run) count(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}
