package doctor

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/dataplane"
	"github.com/tenure-cni/tenure/daemon/fence"
)

// Uplink is what direct routes need, or have left.
type Uplink struct {
	// Qdisc is the kind of the qdisc on the underlay where the fence's filters
	// hang, "" without one.
	Qdisc string
	// Fenced are the devices of the host that bear the instance's fence.
	Fenced []string
	// Routes are the direct routes inside the pod network; of all instances
	// where that is not known.
	Routes []string
}

// observeUplink reads it; what cannot be read is left out.
func (f *Facts) observeUplink() {
	h, err := netlink.NewHandle()
	if err != nil {
		return
	}
	defer h.Close()
	names := map[int]string{}
	links, _ := h.LinkList()
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
		if l.Attrs().Name != f.Underlay {
			continue
		}
		qdiscs, _ := h.QdiscList(l)
		for _, q := range qdiscs {
			if q.Attrs().Parent == netlink.HANDLE_CLSACT {
				f.Uplink.Qdisc = q.Type()
			}
		}
	}
	fenced, _ := fence.Uplinks(fence.Options{Instance: f.Instance})
	for _, index := range fenced {
		f.Uplink.Fenced = append(f.Uplink.Fenced, names[index])
	}
	routes, _ := h.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: dataplane.RouteProtocol}, netlink.RT_FILTER_PROTOCOL)
	for _, r := range routes {
		if r.Gw != nil && f.hosts(names[r.LinkIndex]) && f.inPodNetwork(r) {
			f.Uplink.Routes = append(f.Uplink.Routes, fmt.Sprintf("%s via %s dev %s", r.Dst, r.Gw, names[r.LinkIndex]))
		}
	}
}

// hosts says that a device is the host's own and no bridge or overlay.
func (f *Facts) hosts(name string) bool {
	kind := f.Links[name].Kind
	return name != "" && kind != "bridge" && kind != "vxlan"
}

// inPodNetwork is true as well while no network is known.
func (f *Facts) inPodNetwork(r netlink.Route) bool {
	if f.Status == nil || r.Dst == nil {
		return r.Dst != nil
	}
	dst, _ := netip.AddrFromSlice(r.Dst.IP)
	return within(f.Status, dst.Unmap())
}

// within says that an address lies in a pod network; any does while none is known.
func within(s *api.Status, a netip.Addr) bool {
	known := false
	for _, text := range []string{s.Network, s.Network6} {
		if network, err := netip.ParsePrefix(text); err == nil {
			if network.Contains(a) {
				return true
			}
			known = true
		}
	}
	return !known
}

// uplink judges the fence of direct routes.
func (j *judge) uplink() {
	const code = "uplink-fence"
	u := j.Uplink
	switch {
	case j.Status == nil && len(u.Fenced) > 0:
		j.found(Warning, code, "no tenured answers, and the fence of direct routes is on "+strings.Join(u.Fenced, ", ")+": past the deadline of the lease it drops packets between pods of two nodes there",
			orNothing(u.Routes), "start tenured; or: tenurectl uninstall")
	case len(u.Fenced) == 0 && len(u.Routes) > 0 && j.Root:
		j.found(Error, code, "direct routes lead through a device without the fence: they are open past the deadline of the lease", orNothing(u.Routes),
			"start tenured, which puts the fence back or withdraws them; or: ip route flush proto 90; ip -6 route flush proto 90")
	case u.Qdisc != "" && u.Qdisc != "clsact" && j.Status != nil && j.wantsDirect():
		j.found(Error, code, fmt.Sprintf("a qdisc %s is on %s where the fence would hang, so there are no direct routes", u.Qdisc, j.Underlay), "tc qdisc show dev "+j.Underlay,
			"move its filters to clsact, which has an inward side too; or: take Backend.DirectRouting or host-gw out of the network config")
	case u.Qdisc != "" && u.Qdisc != "clsact":
		j.info(code, fmt.Sprintf("a qdisc %s is on %s: with it neither DirectRouting nor host-gw can be used there", u.Qdisc, j.Underlay), "tc qdisc show dev "+j.Underlay)
	case len(u.Fenced) > 0:
		j.ok(code, "the fence of direct routes is on %s", strings.Join(u.Fenced, ", "))
	}
}

// wantsDirect says that the daemon complains of an uplink.
func (j *judge) wantsDirect() bool {
	for _, p := range j.Status.Problems {
		if p.Code == "data-plane" && strings.Contains(p.Text, "as uplink") {
			return p.Severity == api.SeverityError
		}
	}
	return false
}

func orNothing(routes []string) string {
	if len(routes) == 0 {
		return "no direct routes are left"
	}
	return strings.Join(routes, "; ")
}
