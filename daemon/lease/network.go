package lease

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
)

// judgeLocked takes the config of a new snapshot into force, or says why not:
// then the last good one stays. A config is judged as a whole, against every
// subnet that anybody holds and against this machine.
func (e *Engine) judgeLocked(s *Snapshot) {
	if f := e.forgot; f != nil && !f.settled {
		return // how long to settle depends on the config of before
	}
	if s.Config.ModRevision == 0 {
		delete(e.problems, configRefused)
		if e.network != nil {
			e.problems.add(configMissing, api.SeverityError, "the key "+e.keys.Config()+" is gone from etcd; "+networkName(*e.network)+" stays in force on this node, new nodes wait",
				"run tenurectl init with the config it had")
		}
		return
	}
	delete(e.problems, configMissing)
	n, err := e.judge(s)
	var faults conf.Faults
	if err != nil && !errors.As(err, &faults) {
		e.log.Debug("network config not judged, looked at again with the next event", "error", err)
		return // this machine could not be looked at: no fault of the config
	}
	if err != nil {
		e.refuseConfigLocked(s, err)
		return
	}
	delete(e.problems, configRefused)
	if e.network != nil && *e.network == *n {
		return
	}
	e.log.Info("network config in force", "network", networkName(*n), "leaseTTL", n.LeaseTTL)
	if _, warnings, _ := conf.ParseNetwork(s.Config.Value); len(warnings) > 0 { // it has just been read
		e.log.Warn("network config asks for more than there is", "why", strings.Join(warnings, "; "))
	}
	e.putInForceLocked(n, s.Config.Value)
}

// configRefused is the problem that the config is not taken, or would not be.
const configRefused = "config-refused"

// refuseConfigLocked says why the config is not taken into force; or, where it
// has long been, what has come in its way on this machine: then nothing is
// taken down, since pods use it.
func (e *Engine) refuseConfigLocked(s *Snapshot, err error) {
	if _, known := e.problems[configRefused]; !known {
		e.log.Error("network config refused", "inForce", e.network != nil, "error", err)
	}
	n, _, unreadable := conf.ParseNetwork(s.Config.Value)
	if unreadable == nil && e.network != nil && *e.network == n {
		e.problems.add(configRefused, api.SeverityError, "the network config is in force on this node, and stays so, but would be refused now: "+err.Error(),
			"take what clashes off this node, or give the cluster another network; a node that comes to this state anew waits")
		return
	}
	meanwhile := "the last good config stays in force meanwhile"
	if e.network == nil {
		meanwhile = "this node has had no good one, and waits for it"
	}
	e.problems.add(configRefused, api.SeverityError, "the network config in etcd is refused: "+err.Error(),
		"repair it with tenurectl config edit (the etcd key "+e.keys.Config()+"); "+meanwhile)
}

// putInForceLocked goes on with n. It is written down at once: a daemon that
// starts while a worse one stands in etcd goes by what was good last.
func (e *Engine) putInForceLocked(n *conf.Network, text []byte) {
	urgent := e.network != nil && e.network.Backend != n.Backend
	if e.network != nil {
		e.networks = former(e.networks, e.network.Network, n.Network)
		e.networks = former(e.networks, e.network.IPv6Network, n.IPv6Network)
	}
	e.network, e.config = n, text
	if err := e.cfg.Memory.Update(func(m Memory) Memory {
		m.Config, m.Networks = e.config, e.networks
		return m
	}); err != nil {
		e.log.Warn("node.json not written; until it is, a restart goes by the network config of before", "error", err)
	}
	if e.held != nil {
		err := e.fence.Set(e.held.subnets, networkPair(*n))
		e.noteToldLocked(*n, err)
		urgent = urgent || err != nil
	}
	if urgent {
		e.nudge() // the record announces a backend, and nobody reaches this node before
	}
}

// fenceRefuses is the problem that the kernel takes no new subnet or network.
const fenceRefuses = "fence"

// noteToldLocked keeps in mind whether the fence was told the network n. Until it
// is, it judges nothing outside of the one of before.
func (e *Engine) noteToldLocked(n conf.Network, err error) {
	if err == nil {
		delete(e.problems, fenceRefuses)
		return
	}
	if _, known := e.problems[fenceRefuses]; !known {
		e.log.Error("the fence does not take the network", "network", networkName(n), "error", err)
	}
	e.problems.add(fenceRefuses, api.SeverityError, "the kernel fence refused the network "+networkName(n)+": "+err.Error(),
		"look at the log; the fence goes by the network of before, and this is tried again every second")
}

// fenceRetry is the pause after which the fence is told again what it refused.
const fenceRetry = time.Second

// untilTold is the pause after a cycle, or less where the fence has refused the
// network in force: a renewal may be far off.
func (e *Engine) untilTold(pause time.Duration) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, refused := e.problems[fenceRefuses]; refused {
		return min(pause, jitter(fenceRetry))
	}
	return pause
}

// mostNetworks bounds how many former networks are remembered.
const mostNetworks = 8

// former are the networks that were in force before now, oldest first. One that
// lies in the network in force needs no memory: what the kernel has of it is
// known by that.
func former(known []netip.Prefix, before, now netip.Prefix) []netip.Prefix {
	all := append(slices.DeleteFunc(slices.Clone(known), func(p netip.Prefix) bool { return p == before }), before)
	all = slices.DeleteFunc(all, func(p netip.Prefix) bool { return !p.IsValid() || p.Overlaps(now) && p.Bits() >= now.Bits() })
	return all[max(0, len(all)-mostNetworks):]
}

// ForgetNetworks is told that nothing of these former networks is left in the
// kernel. Whoever uses one from now on is somebody else.
func (e *Engine) ForgetNetworks(gone []netip.Prefix) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.networks = slices.DeleteFunc(slices.Clone(e.networks), func(p netip.Prefix) bool { return slices.Contains(gone, p) })
	if err := e.cfg.Memory.Update(func(m Memory) Memory {
		m.Networks = e.networks
		return m
	}); err != nil {
		e.log.Warn("node.json not written; a former network is looked for once more after a restart", "error", err)
	}
	e.signal()
}

// Rejudge looks at the config again, since something on this machine has
// changed that it could clash with.
func (e *Engine) Rejudge() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.snapshot == nil {
		return
	}
	e.judgeLocked(e.snapshot)
	if e.held == nil {
		e.nudge()
	}
	e.signal()
}

// configMissing is the problem that the config was deleted.
const configMissing = "config-missing"

func (e *Engine) judge(s *Snapshot) (*conf.Network, error) {
	if s.Config.ModRevision == 0 {
		return nil, errNotJudged
	}
	n, _, err := conf.ParseNetwork(s.Config.Value)
	if err != nil {
		return nil, err
	}
	faults := orphaned(n, s)
	if e.cfg.Judge != nil {
		var own conf.Faults
		if err := e.cfg.Judge(n); errors.As(err, &own) {
			faults = append(faults, own...)
		} else if err != nil && len(faults) == 0 {
			return nil, err
		}
	}
	if err := faults.Err(); err != nil {
		return nil, err
	}
	return &n, nil
}

// orphansNamed is how many held subnets are named that a config would orphan, for
// each field; in a large cluster all would be many pages.
const orphansNamed = 3

// orphaned are the faults of a config that has no place for held subnets.
func orphaned(n conf.Network, s *Snapshot) conf.Faults {
	var faults conf.Faults
	count := map[string]int{}
	for _, entry := range s.Entries {
		if entry.unread() { // nobody's: a holder whose record is like this has lost it
			continue
		}
		for _, f := range conf.Judge(n, entry.All()) {
			if count[f.Field]++; count[f.Field] <= orphansNamed {
				faults = append(faults, f)
			}
		}
	}
	for _, field := range slices.Sorted(maps.Keys(count)) {
		if more := count[field] - orphansNamed; more > 0 {
			faults = append(faults, conf.Fault{Field: field, Text: fmt.Sprintf("and so with %d more held subnets", more)})
		}
	}
	return faults
}

// networkInForce is what decide asks: the config of this very snapshot, for
// two nodes with different last good configs would not share one grid.
func (e *Engine) networkInForce(s *Snapshot) func() (*conf.Network, error) {
	return func() (*conf.Network, error) { return e.judge(s) }
}

// networkPair is the network as the fence wants it.
func networkPair(n conf.Network) Subnets {
	return Subnets{V4: n.Network, V6: n.IPv6Network}
}

func networkName(n conf.Network) string {
	var parts []string
	for _, p := range []netip.Prefix{n.Network, n.IPv6Network} {
		if p.IsValid() {
			parts = append(parts, p.String())
		}
	}
	return strings.Join(parts, " & ")
}
