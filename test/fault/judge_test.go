package fault

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tenure-cni/tenure/test/ownership"
)

const (
	// talkTime is how long each pod may take to be heard by each other one, and
	// bookTime how long ledger and kernel may differ, which the daemon compares
	// every few seconds.
	talkTime = 15 * time.Second
	bookTime = 20 * time.Second
	// fewViolations is how many of one kind a verdict shows.
	fewViolations = 4
)

// settle waits until the cluster is well; that it does not become so is found.
func (r *run) settle(ctx context.Context) {
	healed := r.now()
	for _, h := range r.nodes() {
		if err := eventually(ctx, r.patience-(r.now()-healed), h.Host+" is well", func() error { return h.well(ctx) }); err != nil {
			r.violate(r.now(), "%v", err)
			return
		}
	}
	if err := r.talk(ctx); err != nil {
		at := r.now()
		for _, h := range r.nodes() {
			err = fmt.Errorf("%w\n    %s", err, h.tables(ctx))
		}
		r.violate(at, "%v", err)
	}
}

// talk waits until every resident pod of what is held has heard each other one.
func (r *run) talk(ctx context.Context) error {
	type pair struct{ from, to netip.Addr }
	since := r.zero + r.now()
	want := map[pair]string{}
	for _, a := range r.nodes() {
		for _, b := range r.nodes() {
			from, to := a.resident(), b.resident()
			if a != b && from.IsValid() && to.IsValid() && !a.has(to) {
				want[pair{from, to}] = fmt.Sprintf("%s on %s does not reach %s on %s", from, a.Host, to, b.Host)
			}
		}
	}
	seen := 0
	err := eventually(ctx, talkTime, "all pods talk", func() error {
		news := r.probes.After(seen)
		for _, p := range news {
			if p.Sent >= since && p.Source == p.From.Addr {
				delete(want, pair{p.From.Addr, p.To.Addr})
			}
		}
		seen += len(news)
		for _, text := range want {
			return fmt.Errorf("%s (and %d more)", text, len(want)-1)
		}
		return nil
	})
	if err != nil {
		for p, text := range want {
			err = fmt.Errorf("%w\n    %s: %s", err, text, r.last(p.from, p.to))
			for _, h := range r.nodes() {
				if here := h.resident(); here == p.from || here == p.to {
					err = fmt.Errorf("%w\n      %s: %s", err, h.Host, h.flow(ctx, p.from, p.to))
				}
			}
		}
	}
	return err
}

// last says when one address was heard by another at last, and as whom.
func (r *run) last(from, to netip.Addr) string {
	text := "never heard"
	for _, p := range r.probes.Packets() {
		if p.From.Addr == from && p.To.Addr == to {
			text = fmt.Sprintf("heard at last at %.1fs as %s, from %s", (p.Received - r.zero).Seconds(), p.Source, p.From.Node)
		}
	}
	return text
}

// has says that a pod of the node has the address. One that is stranded keeps it
// on its node although the subnet is another's now, so that from there nobody
// reaches the other's pod with that address.
func (h *host) has(a netip.Addr) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.ContainsFunc(h.pods, func(p *pod) bool { return p.addr.Addr() == a })
}

// resident is the address of the pod that stays, in what the node holds.
func (h *host) resident() netip.Addr {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.pods {
		if p.stays && h.holds.Contains(p.addr.Addr()) {
			return p.addr.Addr()
		}
	}
	return netip.Addr{}
}

// audit looks at ledgers, kernels and logs, once nothing goes on any more.
func (r *run) audit(ctx context.Context) {
	for _, h := range r.nodes() {
		if err := eventually(ctx, bookTime, "the books agree", func() error { return h.kept(ctx) }); err != nil {
			r.violate(r.now(), "%v", err)
		}
		if loud := h.loud(); loud != "" {
			r.violate(r.now(), "%s", loud)
		}
	}
}

// judge lets the checker look at everything that was collected.
func (r *run) judge(ctx context.Context) {
	history, foreign, err := r.recorder.Stop(ctx)
	if err != nil {
		r.broken("the history", err)
	}
	machines := map[string]string{} // a copied disk bears the name of the first
	for _, h := range r.hosts {
		machines[h.Addr.String()] = h.Host
	}
	evidence := ownership.Evidence{Prefix: prefix, History: history, Foreign: foreign, Machines: machines,
		Packets: r.probes.Packets(), Samples: r.sampler.Samples(), Ops: r.ops.All()}
	for _, v := range ownership.Judge(evidence) {
		at := max(0, v.At-r.zero) // what was found while all began is of the beginning
		if v.At == 0 {
			at = r.now()
		}
		text := v.String() + r.tenants(history, v.Subnet)
		r.count(func() { r.found = append(r.found, violation{at, v.Rule, text}) })
	}
	events := 0
	for _, l := range history.Lives {
		events += len(l.Events)
	}
	r.evidence = fmt.Sprintf("%d events of etcd in %d lives, %d packets, %d looks at fences", events, len(history.Lives), len(evidence.Packets), len(evidence.Samples))
}

// tenants is what etcd's history, as it was recorded, has of a subnet's key.
func (r *run) tenants(h ownership.History, subnet string) string {
	var b strings.Builder
	for i, l := range h.Lives {
		for _, e := range l.Events {
			if !strings.HasSuffix(e.Key, "/subnets/"+strings.ReplaceAll(subnet, "/", "-")) {
				continue
			}
			what := e.Value
			if e.Deleted {
				what = "deleted"
			}
			fmt.Fprintf(&b, "\n      life %d, revision %d, between %.3fs and %.3fs, lease %x: %s", i, e.Mod, (e.After - r.zero).Seconds(), (e.Seen - r.zero).Seconds(), e.Lease, what)
		}
	}
	return b.String()
}

// facts are what a verdict tells of a run that was well.
func (r *run) facts() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return fmt.Sprintf("%s, %d pods added, %d refused, %d deleted", r.evidence, r.counts.adds, r.counts.refused, r.counts.dels)
}

// ok says that the run was carried out and nothing was found.
func (v verdict) ok() bool { return v.took > 0 && len(v.found) == 0 }

// missed is how many faults did not strike.
func (v verdict) missed() (n int) {
	for _, s := range v.stood {
		if s.missed != "" {
			n++
		}
	}
	return n
}

// rerun is the command that does it again.
func (v verdict) rerun() string {
	if v.schedule.Name != "" {
		return "make test-fault SCHEDULE=" + v.schedule.Name
	}
	return fmt.Sprintf("make test-fault SEED=%d TIME=%s NODES=%d", v.schedule.Seed, v.schedule.Time, v.schedule.Nodes)
}

// String is the verdict in the fewest words: what was found first, when, and
// which faults stood then.
func (v verdict) String() string {
	if v.ok() {
		return fmt.Sprintf("verdict: well %s after the last fault; %d of %d faults missed; %s; took %s", v.well.Round(time.Second/10), v.missed(), len(v.stood), v.facts, v.took.Round(time.Second))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "verdict: %d violations; %s\n", len(v.found), v.facts)
	for i, f := range v.found {
		if i == fewViolations {
			fmt.Fprintf(&b, "  and %d more\n", len(v.found)-i)
			break
		}
		fmt.Fprintf(&b, "  at %.1fs: %s\n", f.at.Seconds(), f.text)
		if i > 0 {
			continue
		}
		for _, s := range v.around(f.at) {
			fmt.Fprintf(&b, "    %s\n", s)
		}
	}
	fmt.Fprintf(&b, "again: %s", v.rerun())
	return b.String()
}

// around are the faults that stood at an instant or within two TTLs before it.
func (v verdict) around(at time.Duration) []standing {
	return slices.DeleteFunc(slices.Clone(v.stood), func(s standing) bool { return s.from > at || s.to != 0 && s.to+2*ttl < at })
}

func (s standing) String() string {
	on := s.On
	if s.Other != "" {
		on += "/" + s.Other
	}
	if s.missed != "" {
		return fmt.Sprintf("%s %s at %.1fs missed: %s", s.Kind, on, s.from.Seconds(), s.missed)
	}
	return fmt.Sprintf("%s %s stood from %.1fs to %.1fs", s.Kind, on, s.from.Seconds(), s.to.Seconds())
}
