package node

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/dataplane"
	"github.com/tenure-cni/tenure/daemon/pathmtu"
	"github.com/tenure-cni/tenure/ipam"
)

// Ways are the ways that packets of pods take now: from this node's gateway to
// that of each peer which is programmed. While the overlay may be closed, or no
// peer is programmed of those that there are, they are nil: not known.
func (n *Node) Ways() []pathmtu.Way {
	v, _ := n.cfg.Tenancy.Changed()
	u, ok := n.cfg.Underlay()
	if !ok || v.Network == nil || !v.Held || !v.InDate(n.cfg.Clock()) {
		return nil
	}
	peers := n.cfg.Plane.Report().Peers
	if len(peers) == 0 {
		return []pathmtu.Way{}
	}
	return waysTo(peers, v.Holding.Subnets().All(), u.PodMTU(v.Network))
}

// waysTo are the ways from the subnets that are held to peers of their family.
func waysTo(peers []dataplane.PeerReport, held []netip.Prefix, size int) []pathmtu.Way {
	var all []pathmtu.Way
	for _, p := range peers {
		if p.State != dataplane.PeerProgrammed {
			continue
		}
		for _, own := range held {
			if own.Addr().Is4() == p.Peer.Subnet.Addr().Is4() {
				all = append(all, pathmtu.Way{From: ipam.Gateway(own), To: ipam.Gateway(p.Peer.Subnet), Size: size})
			}
		}
	}
	return all
}

func (n *Node) holes() []pathmtu.Hole {
	if n.cfg.Holes == nil {
		return nil
	}
	return n.cfg.Holes()
}

// leastClamp is a packet that every host has to take: no way needs less.
func leastClamp(h pathmtu.Hole) int {
	if h.To.Is6() {
		return 1280
	}
	return 576
}

// clampTo lowers what TCP may agree on to what passes everywhere; 0 is not
// asked for. A way that takes little costs the others a little; connections that
// hang cost more.
func clampTo(largest int, holes []pathmtu.Hole) int {
	if largest == 0 {
		return 0
	}
	for _, h := range holes {
		largest = min(largest, max(h.Passes, leastClamp(h)))
	}
	return largest
}

// namedHoles is how many peers the problem names: there may be thousands.
const namedHoles = 5

// holeProblems says which ways lose large packets.
func holeProblems(holes []pathmtu.Hole, peers []api.Peer, n conf.Network, clamped bool) []api.Problem {
	if len(holes) == 0 {
		return nil
	}
	var texts []string
	least := holes[0].Passes
	for _, h := range holes {
		least = min(least, h.Passes)
		if len(texts) < namedHoles {
			texts = append(texts, fmt.Sprintf("%s (%d arrive, %d do not)", peerWith(h.To, peers), h.Passes, h.Size))
		}
	}
	if rest := len(holes) - namedHoles; rest > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", rest))
	}
	text := fmt.Sprintf("large packets to %s are lost, and nobody says so: connections hang once they carry much", strings.Join(texts, ", "))
	if clamped {
		text += "; new TCP connections are kept smaller than that (--clamp-mss), datagrams are not"
	}
	fix := "give all between the nodes one MTU, and let ICMP pass"
	if least >= leastMTU(&n) { // less is refused in the config
		fix += fmt.Sprintf("; or tenurectl config set with Backend.MTU %d, and start pods anew", least+n.Backend.Overhead(n.EnableIPv6))
	}
	if !clamped {
		fix += "; meanwhile --clamp-mss lets TCP pass"
	}
	return []api.Problem{problem("path-mtu", api.SeverityWarning, text, fix)}
}

// peerWith is the peer whose subnet has an address, for people.
func peerWith(a netip.Addr, peers []api.Peer) string {
	i := slices.IndexFunc(peers, func(p api.Peer) bool {
		return slices.ContainsFunc(strings.Split(p.Subnet, " & "), func(s string) bool {
			subnet, err := netip.ParsePrefix(s)
			return err == nil && subnet.Contains(a)
		})
	})
	if i < 0 {
		return a.String()
	}
	return fmt.Sprintf("%s at %s", peers[i].Node, peers[i].PublicIP)
}
