package lease

import (
	"errors"
	"net/netip"
	"strings"

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
	delete(e.problems, configMissing)
	if s.Config.ModRevision == 0 {
		delete(e.problems, "config-refused")
		if e.network != nil {
			e.problems.add(configMissing, api.SeverityError, "the key "+e.keys.Config()+" is gone from etcd; "+networkName(*e.network)+" stays in force on this node, new nodes wait",
				"run tenurectl init with the config it had")
		}
		return
	}
	n, err := e.judge(s)
	var faults conf.Faults
	if err != nil && !errors.As(err, &faults) {
		e.log.Debug("network config not judged, looked at again with the next event", "error", err)
		return // this machine could not be looked at: no fault of the config
	}
	if err != nil {
		if _, known := e.problems["config-refused"]; !known {
			e.log.Error("network config refused, the last good one stays in force", "error", err)
		}
		e.problems.add("config-refused", api.SeverityError, "the network config in etcd is refused: "+err.Error(),
			"repair it with tenurectl config edit (the etcd key "+e.keys.Config()+"); the last good config stays in force meanwhile")
		return
	}
	delete(e.problems, "config-refused")
	if e.network != nil && *e.network == *n {
		return
	}
	e.log.Info("network config in force", "network", networkName(*n), "leaseTTL", n.LeaseTTL)
	e.network, e.config = n, s.Config.Value
	if e.held != nil {
		if err := e.fence.Set(e.held.subnets, networkPair(*n)); err != nil {
			e.log.Error("the fence did not take the new network", "error", err)
		}
	}
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
	var faults conf.Faults
	for _, entry := range s.Entries {
		if entry.unread() { // nobody's: a holder whose record is like this has lost it
			continue
		}
		faults = append(faults, conf.Judge(n, entry.All())...)
	}
	if len(faults) > 0 {
		return nil, faults
	}
	if e.cfg.Judge != nil {
		if err := e.cfg.Judge(n); err != nil {
			return nil, err
		}
	}
	return &n, nil
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
