package node

import (
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
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

// requested is the address of one family that the caller asks for: by the
// capability "ips", by CNI_ARGS, or none.
func (c call) requested(subnet netip.Prefix) netip.Addr {
	for _, a := range slices.Concat(c.conf.IPs, c.args.IPs) {
		if a.Is4() == subnet.Addr().Is4() {
			return a
		}
	}
	return netip.Addr{}
}

// bypassing are the reference plugins whose packets leave by the underlay
// interface and never meet the fence.
var bypassing = []string{"macvlan", "ipvlan"}

// refuseBypass says why an address is not given to such a plugin.
func (c call) refuseBypass() *types.Error {
	if !slices.Contains(bypassing, c.conf.Type) {
		return nil
	}
	return cniError(api.CodeInvalidConfig, "tenure-ipam serves no %s: its packets would leave by the host's interface, past the fence that closes a subnet whose lease cannot be proven; use bridge or ptp", c.conf.Type)
}
