package doctor

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/dataplane"
)

// Paths below /proc/sys.
const (
	ipForward      = "net/ipv4/ip_forward"
	ipForward6     = "net/ipv6/conf/all/forwarding"
	bridgeNF       = "net/bridge/bridge-nf-call-iptables"
	conntrackCount = "net/netfilter/nf_conntrack_count"
	conntrackMax   = "net/netfilter/nf_conntrack_max"
)

func confOf(device, name string) string { return "net/ipv4/conf/" + device + "/" + name }

// sysctl is the command that sets a value; a dot in a device's name is a slash.
func sysctl(path, value string) string { return "sysctl -w " + path + "=" + value }

// ways are the devices that a pod's packet passes, as far as they exist.
func (j *judge) ways() []string {
	var all []string
	for _, name := range []string{j.Underlay, j.bridge(), j.overlay()} {
		if _, ok := j.Links[name]; ok {
			all = append(all, name)
		}
	}
	return all
}

func (j *judge) settings() {
	if j.ReadOnlySysctls {
		j.found(Error, "read-only-sysctls", "/proc/sys is mounted read-only: tenured cannot turn routing on or keep it on", "/proc/sys ro", "mount -o remount,rw /proc/sys; or: run tenured where it can be written (a privileged container)")
	}
	j.forwarding()
	j.reversePath()
	j.uplink()
	j.bridgeNetfilter()
}

func (j *judge) forwarding() {
	var off, fixes []string
	note := func(path string) {
		if v, ok := j.Sysctls[path]; ok && v != "1" {
			off, fixes = append(off, path+" = "+v), append(fixes, sysctl(path, "1"))
		}
	}
	four, six := j.families()
	if four {
		note(ipForward)
		for _, name := range j.ways() {
			note(confOf(name, "forwarding"))
		}
	}
	if six {
		note(ipForward6)
	}
	evidence, fix := strings.Join(off, ", "), strings.Join(fixes, "; ")
	switch {
	case len(off) == 0:
		j.ok("forwarding", "packets are routed between interfaces")
	case j.Status == nil || j.Status.Subnet == "" && j.Status.Subnet6 == "":
		j.info("forwarding", "routing between interfaces is off; tenured turns it on when it holds a subnet", evidence)
	default:
		j.found(Error, "forwarding", "routing between interfaces is off: pods reach nothing outside of this node. tenured turns it on again within seconds; if it stays so, something turns it off",
			evidence, fix+"; grep -r forward /etc/sysctl.conf /etc/sysctl.d")
	}
}

// reversePath judges strict filtering: a packet is dropped where its source is
// not reached by the interface that it came in by. The greater of the setting
// for all and that of the device counts. The inner packets' sources are routed
// through the overlay and the bridge, so there it does no harm.
func (j *judge) reversePath() {
	strict := func(name string) (string, bool) {
		all, own := j.Sysctls[confOf("all", "rp_filter")], j.Sysctls[confOf(name, "rp_filter")]
		return fmt.Sprintf("all %s, %s %s", all, name, own), max(all, own) == "1"
	}
	evidence, isStrict := strict(j.Underlay)
	var other []string
	for _, addr := range slices.SortedFunc(maps.Keys(j.Ways), netip.Addr.Compare) {
		if way := j.Ways[addr]; way != j.Underlay && addr.Is4() { // IPv6 has no such filter
			other = append(other, addr.String()+" by "+way)
		}
	}
	if isStrict && len(other) > 0 {
		j.found(Error, "rp-filter", fmt.Sprintf("peers are reached by another interface than %s, and strict reverse-path filtering there drops what comes from them", j.Underlay),
			evidence+"; "+strings.Join(other, ", "), sysctl(confOf(j.Underlay, "rp_filter"), "2")+"; or: give the peers a route through "+j.Underlay)
		return
	}
	var where []string
	for _, name := range j.ways() {
		if text, is := strict(name); is {
			where = append(where, text)
		}
	}
	if len(where) > 0 {
		j.info("rp-filter", "strict reverse-path filtering is on and does no harm: every source is routed through the device its packets come in by", strings.Join(where, "; "))
		return
	}
	j.ok("rp-filter", "reverse-path filtering is not strict (%s)", evidence)
}

func (j *judge) bridgeNetfilter() {
	value, loaded := j.Sysctls[bridgeNF]
	evidence := bridgeNF + " = " + value
	if !loaded {
		evidence = "br_netfilter is not loaded"
	}
	switch {
	case value == "1":
		j.ok("bridge-netfilter", "%s: bridged packets pass iptables, as kube-proxy's services need", evidence)
	case j.KubeProxy:
		j.found(Warning, "bridge-netfilter", "kube-proxy's rules are here, but bridged packets do not pass them: a service whose pod is on the client's node does not answer",
			evidence, "modprobe br_netfilter && "+sysctl(bridgeNF, "1"))
	default:
		j.info("bridge-netfilter", "bridged packets do not pass iptables; only services of kube-proxy need that", evidence)
	}
}

func (j *judge) tables() {
	j.neighbours()
	count, err := strconv.ParseUint(j.Sysctls[conntrackCount], 10, 64)
	limit, err2 := strconv.ParseUint(j.Sysctls[conntrackMax], 10, 64)
	evidence := fmt.Sprintf("%d of %d connections", count, limit)
	switch {
	case err != nil || err2 != nil || limit == 0: // not loaded yet
	case count >= limit:
		j.found(Error, "conntrack-limit", "the table of connections is full: new connections are dropped", evidence, sysctl(conntrackMax, strconv.FormatUint(4*limit, 10)))
	case count >= limit/5*4:
		j.found(Warning, "conntrack-limit", "the table of connections is nearly full: then new connections are dropped", evidence, sysctl(conntrackMax, strconv.FormatUint(4*limit, 10)))
	default:
		j.ok("conntrack-limit", "%s", evidence)
	}
}

// neighbours judges the table of each family that pods have.
func (j *judge) neighbours() {
	four, six := j.families()
	if four {
		j.neighboursOf(false, j.Neighbours)
	}
	if six {
		j.neighboursOf(true, j.Neighbours6)
	}
}

func (j *judge) neighboursOf(six bool, table Neighbours) {
	const code = "neighbour-limits"
	limit, pods := j.Sysctls[dataplane.NeighbourLimit(six)], j.pods(six)
	evidence := fmt.Sprintf("%s: gc_thresh1..3 = %s, %s, %s; %d pods, %d peers (permanent entries, not counted by the kernel); %d entries of all kinds and namespaces; the table was full %d times since the boot",
		familyName(six), j.Sysctls[dataplane.NeighbourThreshold(six, 1)], j.Sysctls[dataplane.NeighbourThreshold(six, 2)], limit, pods, j.peers(), table.Entries, table.Fulls)
	text := dataplane.NeighboursTight(six, pods, limit)
	switch {
	case limit == "":
		j.info(code, "the limits of the neighbour table are not to be seen here", "no "+dataplane.NeighbourLimit(six))
	case text != "":
		j.found(Warning, code, text, evidence, dataplane.NeighbourFix(six, pods))
	case table.Fulls > 0:
		j.found(Warning, code, "the kernel's neighbour table of "+familyName(six)+" was full: packets were lost, and hosts could not be reached", evidence, dataplane.NeighbourFix(six, pods))
	default:
		j.ok(code, "%s", evidence)
	}
}

// pods are how many on record have an address of a family.
func (j *judge) pods(six bool) (n int) {
	for _, r := range j.Ledger {
		if slices.ContainsFunc(r.Addresses, func(p netip.Prefix) bool { return p.Addr().Is6() == six }) {
			n++
		}
	}
	return n
}

func (j *judge) peers() int {
	if j.Status == nil {
		return 0
	}
	return len(j.Status.Peers)
}

// overhead is what one of our vxlan devices adds to a packet: its name says the
// family.
func (j *judge) overhead(device string) int {
	return conf.Backend{Type: conf.BackendVXLAN}.Overhead(strings.HasPrefix(device, j.Instance+"6."))
}

// smallest is the least MTU that IPv6 takes; less breaks more than that.
const smallest = 1280

func (j *judge) sizes() {
	under, ok := j.Links[j.Underlay]
	if !ok {
		return
	}
	evidence := fmt.Sprintf("%s %d", j.Underlay, under.MTU)
	const code = "mtu"
	before, overlays := len(j.all), j.overlays()
	pods := under.MTU - j.overhead("")
	if j.Status != nil && j.Status.MTU > 0 && len(overlays) == 0 { // host-gw has none, and no overhead
		pods = j.Status.MTU
	}
	for _, name := range overlays {
		evidence += fmt.Sprintf(", %s %d", name, j.Links[name].MTU)
		pods = min(pods, j.Links[name].MTU, under.MTU-j.overhead(name))
	}
	if pods < smallest {
		j.found(Warning, code, fmt.Sprintf("pods get packets of less than %d bytes", smallest), evidence, fmt.Sprintf("ip link set %s mtu 1500", j.Underlay))
	}
	for _, name := range overlays {
		if mtu := j.Links[name].MTU; mtu > under.MTU-j.overhead(name) {
			j.found(Error, code, "the overlay's packets do not fit the underlay: large ones are lost", evidence,
				fmt.Sprintf("ip link set %s mtu %d; or: set MTU in the network config to %d", j.Underlay, mtu+j.overhead(name), under.MTU))
		}
	}
	if bridge, ok := j.Links[j.bridge()]; ok && len(overlays) > 0 {
		evidence += fmt.Sprintf(", %s %d", j.bridge(), bridge.MTU)
		if least := j.leastMTU(overlays); bridge.MTU != least {
			j.found(Warning, code, "bridge and overlay differ in MTU; tenured sets both", evidence, fmt.Sprintf("ip link set %s mtu %d", j.bridge(), least))
		}
	}
	if len(j.all) == before {
		j.ok(code, "%s; pods can have %d", evidence, pods)
	}
}

func (j *judge) leastMTU(devices []string) int {
	least := j.Links[devices[0]].MTU
	for _, name := range devices {
		least = min(least, j.Links[name].MTU)
	}
	return least
}

func (j *judge) devices() {
	j.addresses()
	j.rivals()
	j.overlaps()
	for _, name := range append([]string{j.bridge()}, j.overlays()...) {
		if m := j.Links[name].Manager; m != "" {
			j.found(Warning, "link-manager", fmt.Sprintf("%s manages %s and may take its addresses and routes away", m, name), m+" says so", unmanage(m, name))
		}
	}
	if j.Status != nil && len(j.held()) > 0 && j.Status.State != api.StateLost {
		j.gateways()
	}
}

// gateways judges the bridge by the subnet of each family.
func (j *judge) gateways() {
	bridge, there := j.Links[j.bridge()]
	var gateways, missing []netip.Prefix
	for _, subnet := range j.held() {
		gateway := netip.PrefixFrom(subnet.Addr().Next(), subnet.Bits())
		gateways = append(gateways, gateway)
		if !slices.Contains(bridge.Addrs, gateway) {
			missing = append(missing, gateway)
		}
	}
	switch {
	case !there:
		j.found(Error, "bridge", "the bridge of the pods is missing; tenured makes it within seconds", j.bridge(), "journalctl -u tenured")
	case !bridge.Up || len(missing) > 0:
		j.found(Error, "bridge", "the bridge is down or lacks the gateway of the leased subnet; tenured repairs it within seconds",
			fmt.Sprintf("%s up %t, %v; want %s", j.bridge(), bridge.Up, bridge.Addrs, joined(gateways)), "journalctl -u tenured")
	default:
		j.ok("bridge", "%s is up with %s", j.bridge(), joined(gateways))
	}
}

// joined are prefixes for people.
func joined(all []netip.Prefix) string {
	var texts []string
	for _, p := range all {
		texts = append(texts, p.String())
	}
	return strings.Join(texts, ", ")
}

// addresses judges those of the underlay: what a running daemon has found once it
// goes on with, also when it is gone or on its way out. That one is missing from
// the start the daemon says itself.
func (j *judge) addresses() {
	const code = "underlay-address"
	under, there := j.Links[j.Underlay]
	if !there || j.Status == nil || slices.ContainsFunc(j.Status.Problems, func(p api.Problem) bool { return p.Code == "underlay-missing" }) {
		return
	}
	before := len(j.all)
	four, six := j.families()
	for _, f := range []struct {
		six, wanted bool
		public      string
	}{{false, four, j.Status.PublicIP}, {true, six, j.Status.PublicIP6}} {
		fit, unfit := under.addresses(f.six)
		if !f.wanted || f.public == "" || fit {
			continue
		}
		severity, evidence := Error, "there is none"
		if len(unfit) > 0 {
			severity, evidence = Warning, strings.Join(unfit, ", ")
		}
		j.found(severity, code, fmt.Sprintf("%s has no %s address that other nodes can be told of; they still send to %s", j.Underlay, familyName(f.six), f.public),
			evidence, fmt.Sprintf("give %s one that lasts: ip addr show dev %s", j.Underlay, j.Underlay))
	}
	if len(j.all) == before {
		j.ok(code, "%s has %s", j.Underlay, joined(under.Addrs))
	}
}

// addresses says whether there is one of a family that other nodes can be told
// of, and why the others are none; the one that IPv6 has on every link is not
// worth a word.
func (l Link) addresses(six bool) (fit bool, unfit []string) {
	for _, a := range l.Addrs {
		ip := a.Addr()
		switch why := l.Unfit[ip]; {
		case ip.Is6() != six:
		case why == "":
			fit = true
		case !six || !ip.IsLinkLocalUnicast():
			unfit = append(unfit, ip.String()+" is "+why)
		}
	}
	return fit, unfit
}

func unmanage(manager, name string) string {
	if manager == networkd {
		return fmt.Sprintf(`printf '[Match]\nName=%s\n[Link]\nUnmanaged=yes\n' >/etc/systemd/network/00-%s.network && networkctl reload`, name, name)
	}
	return "nmcli device set " + name + " managed no"
}

// rivals are other overlays.
func (j *judge) rivals() {
	mine := j.overlays()
	for _, name := range slices.Sorted(maps.Keys(j.Links)) {
		l := j.Links[name]
		if l.Kind != "vxlan" || slices.Contains(mine, name) {
			continue
		}
		clash := l.Up && slices.ContainsFunc(mine, func(our string) bool {
			o := j.Links[our]
			return l.VNI == o.VNI && l.Port == o.Port
		})
		evidence := fmt.Sprintf("%s: VNI %d, port %d, up %t", name, l.VNI, l.Port, l.Up)
		switch {
		case clash:
			j.found(Error, "other-overlay", "another vxlan device has the VNI and port of ours", evidence, "ip link del "+name)
		case strings.HasPrefix(name, "flannel."), strings.HasPrefix(name, "flannel-v6."):
			j.found(Warning, "other-overlay", "flannel's device is here: its record is not taken over while that is up, and two overlays claim the pod network", evidence,
				"stop flanneld, then: ip link del "+name)
		default:
			j.info("other-overlay", "there is another vxlan device", evidence)
		}
	}
}

// overlaps names devices of others with addresses of the pod network. A single
// address takes no packet but its own: the plugin ptp gives the gateway's to
// each pod's interface.
func (j *judge) overlaps() {
	around := func(all []netip.Prefix, a netip.Prefix) (netip.Prefix, bool) {
		i := slices.IndexFunc(all, a.Masked().Overlaps)
		if i < 0 {
			return a, false
		}
		return all[i], true
	}
	for _, name := range slices.Sorted(maps.Keys(j.Links)) {
		if name == j.bridge() || slices.Contains(j.overlays(), name) {
			continue
		}
		for _, a := range j.Links[name].Addrs {
			fix := fmt.Sprintf("ip addr del %s dev %s; or: give %s another network", a, name, name)
			subnet, ofSubnet := around(j.held(), a)
			network, ofNetwork := around(j.networks(), a)
			switch {
			case a.IsSingleIP():
			case ofSubnet:
				j.found(Error, "address-overlap", name+" has addresses of this node's own subnet: pods and that device are confused", fmt.Sprintf("%s on %s, subnet %s", a, name, subnet), fix)
			case ofNetwork:
				j.found(Warning, "address-overlap", name+" has addresses of the pod network: a node that leases them is not reached", fmt.Sprintf("%s on %s, network %s", a, name, network), fix)
			}
		}
	}
}
