package main

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/attach"
)

// podMTUs is which MTU the pods of this node have: that of the day they were
// made. The bridge and the overlay follow the underlay, a running pod does not.
type podMTUs struct {
	instance string
	mu       sync.Mutex
	pods     []podMTU
}

// podMTU is the MTU of one pod interface.
type podMTU struct {
	Container, IfName string
	Addrs             []netip.Prefix
	MTU               int
}

// String is the pod for people.
func (p podMTU) String() string {
	var addrs []string
	for _, a := range p.Addrs {
		addrs = append(addrs, a.Addr().String())
	}
	return fmt.Sprintf("%s %s (%s) has %d", p.Container, p.IfName, strings.Join(addrs, ", "), p.MTU)
}

// look takes in what the kernel has.
func (m *podMTUs) look(links []netlink.Link) {
	pods := podsAmong(links, m.instance)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pods = pods
}

// podsAmong is pure: the instance's pod interfaces. Both ends of one are given
// the same MTU, and what the pod does to its own is its affair.
func podsAmong(links []netlink.Link, instance string) []podMTU {
	var all []podMTU
	for _, l := range links {
		if o, addrs, ok := attach.ParseAlias(l.Attrs().Alias); ok && o.Instance == instance {
			all = append(all, podMTU{o.ContainerID, o.IfName, addrs, l.Attrs().MTU})
		}
	}
	slices.SortFunc(all, func(a, b podMTU) int {
		return cmp.Or(cmp.Compare(a.Container, b.Container), cmp.Compare(a.IfName, b.IfName))
	})
	return all
}

// oldMTUs are the pods that have another MTU than pods get now.
func (d *daemon) oldMTUs(n *conf.Network) []api.Problem {
	u, ok := d.underlay.Get()
	if !ok || n == nil {
		return nil
	}
	d.podMTUs.mu.Lock()
	defer d.podMTUs.mu.Unlock()
	return oldMTUs(d.podMTUs.pods, u.PodMTU(n))
}

// namedPods is how many pods a problem names: there may be hundreds.
const namedPods = 5

// oldMTUs is pure. A pod with more than fits is told so by the host, packet by
// packet, as long as nothing drops the ICMP; a pod with less only has less. On
// one bridge, which tells nobody, larger datagrams to a pod with less are lost;
// TCP asks the other end how much it takes.
func oldMTUs(pods []podMTU, want int) []api.Problem {
	var texts []string
	larger := 0
	for _, p := range pods {
		if p.MTU == want {
			continue
		}
		if p.MTU > want {
			larger++
		}
		texts = append(texts, p.String())
	}
	if len(texts) == 0 {
		return nil
	}
	count := len(texts)
	if rest := count - namedPods; rest > 0 {
		texts = append(texts[:namedPods], fmt.Sprintf("and %d more", rest))
	}
	text := fmt.Sprintf("pods get MTU %d now, and pods from before have another (%d): %s", want, count, strings.Join(texts, ", "))
	if larger > 0 {
		text += fmt.Sprintf("; what %d of them send in larger packets is answered by ICMP, and TCP goes on with smaller ones", larger)
	}
	text += "; datagrams between pods of this node that are larger than the other's MTU are lost"
	return []api.Problem{{Code: "pods-old-mtu", Severity: api.SeverityWarning, Text: text,
		Fix: "start these pods anew (drain the node): they get the new MTU then; where ICMP is dropped, --clamp-mss keeps their TCP going until they are"}}
}
