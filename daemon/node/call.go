package node

import (
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/lease"
	"github.com/tenure-cni/tenure/ipam"
)

// call is one CNI request, understood.
type call struct {
	conf  conf.NetConf
	args  conf.Args
	key   ipam.Key
	netns string
}

// parse reads a request. On an error that is no conf.ErrDecode the call holds
// what could be read, so that a DEL can go on.
func parse(r *api.Request) (call, error) {
	c := call{netns: r.Netns}
	var err error
	c.conf, err = conf.ParseNetConf(r.Config)
	c.key = ipam.Key{Network: c.conf.Name, ContainerID: r.ContainerID, IfName: r.IfName}
	if err != nil {
		return c, err
	}
	c.args, err = conf.ParseArgs(r.Args)
	return c, err
}

// asks are the addresses to have, one per family: by the capability "ips", by
// CNI_ARGS, or any. A caller that names another of the same family, or of a
// family that is not served here, is refused: it would wait for an address that
// nobody gave.
func (c call) asks(held lease.Subnets) ([]ipam.Ask, error) {
	var asks []ipam.Ask
	for _, p := range held.All() {
		asks = append(asks, ipam.Ask{Subnet: p})
	}
	for _, a := range slices.Concat(c.conf.IPs, c.args.IPs) {
		i := slices.IndexFunc(asks, func(ask ipam.Ask) bool { return ask.Subnet.Addr().Is4() == a.Is4() })
		switch {
		case i < 0:
			return nil, cniError(api.CodeAddressUnavailable, "%s is asked for %s, this node's subnet is %s", c.key, a, held)
		case asks[i].Want.IsValid() && asks[i].Want != a:
			return nil, cniError(api.CodeAddressUnavailable, "%s is asked for %s and %s, an interface has one address of a family", c.key, asks[i].Want, a)
		}
		asks[i].Want = a
	}
	return asks, nil
}

// previous is the result that the runtime passes along: of the plugins ahead of
// this one at an ADD, of the whole chain otherwise; nil if there is none.
func (c call) previous() (*current.Result, error) {
	if len(c.conf.RawPrevResult) == 0 {
		return nil, nil
	}
	pc := c.conf.PluginConf
	if err := version.ParsePrevResult(&pc); err != nil {
		return nil, cniError(api.CodeDecode, "prevResult: %v", err)
	}
	prev, err := current.NewResultFromResult(pc.PrevResult)
	if err != nil {
		return nil, cniError(api.CodeDecode, "prevResult: %v", err)
	}
	return prev, nil
}

// bypassing are the plugins whose packets leave by an interface of the host and
// never meet the fence.
var bypassing = []string{"macvlan", "ipvlan", "vlan", "host-device", "sriov"}

// refuseBypass says why an address is not given to such a plugin.
func (c call) refuseBypass() *types.Error {
	if !slices.Contains(bypassing, c.conf.Type) {
		return nil
	}
	return cniError(api.CodeInvalidConfig, "tenure-ipam serves no %s: its packets would leave by the host's interface, past the fence that closes a subnet whose lease cannot be proven; use bridge or ptp", c.conf.Type)
}
