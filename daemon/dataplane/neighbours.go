package dataplane

import (
	"fmt"
	"strconv"
)

// NeighbourThreshold is the path below /proc/sys of gc_thresh1, 2 or 3 of a
// family (six is IPv6). Each family has a table of neighbours, one for all
// namespaces; only the first one shows them.
func NeighbourThreshold(six bool, n int) string {
	return "net/" + versionOf(six) + "/neigh/default/gc_thresh" + strconv.Itoa(n)
}

// NeighbourLimit is the path of the most neighbours that the kernel learns.
func NeighbourLimit(six bool) string { return NeighbourThreshold(six, 3) }

// versionOf is a family's name in paths.
func versionOf(six bool) string {
	if six {
		return "ipv6"
	}
	return "ipv4"
}

// perPod is how many entries a pod takes at least in a family: itself on the
// bridge, and the gateway in its own namespace. IPv6 adds some for groups, which
// the kernel drops first.
const perPod = 2

// NeighboursTight judges the limit of a family against the pods that have it,
// and says what is wrong; "" if nothing is, or the limit is not known. Peers are
// permanent entries, and those are not counted since Linux 5.0: they cost
// nothing of it.
func NeighboursTight(six bool, pods int, limit string) string {
	n, err := strconv.Atoi(limit)
	if err != nil || n <= 0 || perPod*pods < n/4*3 {
		return ""
	}
	family := "IPv4"
	if six {
		family = "IPv6"
	}
	return fmt.Sprintf("%d pods need at least %d entries of the kernel's neighbour table of %s, which takes %d (gc_thresh3) for all namespaces; when it is full, packets are lost and pods are not reached",
		pods, perPod*pods, family, n)
}

// NeighbourFix is the command that makes room for so many pods in a family.
func NeighbourFix(six bool, pods int) string {
	top := 4096
	for top < 4*perPod*pods {
		top *= 2
	}
	return fmt.Sprintf("sysctl -w net.%[1]s.neigh.default.gc_thresh3=%[2]d net.%[1]s.neigh.default.gc_thresh2=%[3]d, and the same in /etc/sysctl.d", versionOf(six), top, top/2)
}

// neighbours reports limits that the pods come near to. They are not ours to
// raise: the tables belong to the whole host.
func (p *planner) neighbours() {
	for _, t := range []struct {
		six, wanted bool
		what        string
	}{{false, p.want.families().V4, ConflictNeighbours}, {true, p.want.families().V6, ConflictNeighbours6}} {
		if !t.wanted {
			continue
		}
		if text := NeighboursTight(t.six, len(p.want.Bridge.Ports), p.have.Sysctls[NeighbourLimit(t.six)]); text != "" {
			p.conflict(t.what, "%s; beside them %d peers, whose entries are permanent and not counted", text, p.peersOf(t.six))
		}
	}
}

func (p *planner) peersOf(six bool) (n int) {
	for _, peer := range p.want.Peers {
		if isSix(peer.Subnet) == six {
			n++
		}
	}
	return n
}
