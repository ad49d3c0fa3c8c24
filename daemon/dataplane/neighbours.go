package dataplane

import (
	"fmt"
	"strconv"
)

// NeighbourThreshold is the path below /proc/sys of gc_thresh1, 2 or 3. The
// table of neighbours is one for all namespaces; only the first one shows them.
func NeighbourThreshold(n int) string {
	return "net/ipv4/neigh/default/gc_thresh" + strconv.Itoa(n)
}

// NeighbourLimitPath is the path of the most neighbours that the kernel learns.
const NeighbourLimitPath = "net/ipv4/neigh/default/gc_thresh3"

// perPod is how many entries a pod takes at least: itself on the bridge, and
// the gateway in its own namespace.
const perPod = 2

// NeighboursTight judges the limit against the pods, and says what is wrong;
// "" if nothing is, or the limit is not known. Peers are permanent entries,
// and those are not counted since Linux 5.0: they cost nothing of it.
func NeighboursTight(pods int, limit string) string {
	n, err := strconv.Atoi(limit)
	if err != nil || n <= 0 || perPod*pods < n/4*3 {
		return ""
	}
	return fmt.Sprintf("%d pods need at least %d entries of the kernel's neighbour table, which takes %d (gc_thresh3) for all namespaces; when it is full, packets are lost and pods are not reached",
		pods, perPod*pods, n)
}

// NeighbourFix is the command that makes room for so many pods.
func NeighbourFix(pods int) string {
	top := 4096
	for top < 4*perPod*pods {
		top *= 2
	}
	return fmt.Sprintf("sysctl -w net.ipv4.neigh.default.gc_thresh3=%d net.ipv4.neigh.default.gc_thresh2=%d, and the same in /etc/sysctl.d", top, top/2)
}

// neighbours reports a limit that the pods come near to. It is not ours to
// raise: the table belongs to the whole host.
func (p *planner) neighbours() {
	pods := len(p.want.Bridge.Ports)
	if text := NeighboursTight(pods, p.have.Sysctls[NeighbourLimitPath]); text != "" {
		p.conflict(ConflictNeighbours, "%s; beside them %d peers, whose entries are permanent and not counted", text, len(p.want.Peers))
	}
}
