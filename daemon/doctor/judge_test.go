package doctor

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/attach"
	"github.com/tenure-cni/tenure/daemon/cnidir"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// podLink is the interface of a pod of the container.
const podLink = "tenabc"

func alias(instance, container string) string {
	return attach.Alias(attach.Owner{Instance: instance, Network: "tenure", ContainerID: container, IfName: "eth0"}, []netip.Prefix{prefix("10.5.34.9/24")})
}

// bare is a host before an installation, with nothing in the way.
func bare() Facts {
	return Facts{
		Instance: "tenure", Root: true, Kernel: "6.1.0-18-amd64", Trials: &Trials{},
		IPTables: IPTables{Path: "/usr/sbin/iptables", Version: "iptables v1.8.9 (nf_tables)"},
		Sysctls: map[string]string{
			ipForward: "0", confOf("eth0", "forwarding"): "0", bridgeNF: "1", conntrackCount: "10", conntrackMax: "262144",
			confOf("all", "rp_filter"): "0", confOf("eth0", "rp_filter"): "2",
			"net/ipv4/neigh/default/gc_thresh1": "128", "net/ipv4/neigh/default/gc_thresh2": "512", "net/ipv4/neigh/default/gc_thresh3": "1024",
			"net/ipv6/neigh/default/gc_thresh1": "128", "net/ipv6/neigh/default/gc_thresh2": "512", "net/ipv6/neigh/default/gc_thresh3": "1024",
		},
		Underlay: "eth0",
		Links: map[string]Link{
			"lo":   {Kind: "device", MTU: 65536, Up: true, Addrs: []netip.Prefix{prefix("127.0.0.1/8")}},
			"eth0": {Kind: "device", MTU: 1500, Up: true, Addrs: []netip.Prefix{prefix("192.0.2.11/24")}},
		},
		Run:   Directory{Path: "/run/tenure", Volatile: true, Free: 1 << 30, Total: 2 << 30, FreeFiles: 1000, Files: 2000},
		State: Directory{Path: "/var/lib/tenure", Free: 1 << 30, Total: 2 << 30},
		CNI: CNI{ConfDir: "/etc/cni/net.d", BinDir: "/opt/cni/bin",
			Programs: map[string]bool{"tenure": true, "tenure-ipam": true, "portmap": true}},
		Socket: "/run/tenure/tenured.sock", StatusErr: "no such file",
	}
}

// running is a node with two peers and a pod.
func running() Facts {
	f := bare()
	for _, name := range []string{"eth0", "tenure0", "tenure.1"} {
		f.Sysctls[confOf(name, "forwarding")] = "1"
		f.Sysctls[confOf(name, "rp_filter")] = "0"
	}
	f.Sysctls[ipForward] = "1"
	f.Links["tenure0"] = Link{Kind: "bridge", MTU: 1450, Up: true, Addrs: []netip.Prefix{prefix("10.5.34.1/24")}}
	f.Links["tenure.1"] = Link{Kind: "vxlan", MTU: 1450, Up: true, VNI: 1, Port: 8472, Addrs: []netip.Prefix{prefix("10.5.34.0/32")}}
	f.Links[podLink] = Link{Kind: "veth", MTU: 1450, Up: true, Alias: alias("tenure", "c1")}
	f.Run.There, f.State.There, f.SocketThere, f.StatusErr = true, true, true, ""
	f.Status = &api.Status{Version: "v1", State: api.StateHeld, Ready: true, Network: "10.5.0.0/16", Subnet: "10.5.34.0/24", Interface: "eth0",
		Peers: []api.Peer{{PublicIP: "192.0.2.12"}, {PublicIP: "192.0.2.13"}}}
	f.Ways = map[netip.Addr]string{netip.MustParseAddr("192.0.2.12"): "eth0", netip.MustParseAddr("192.0.2.13"): "eth0"}
	f.Ledger = []Recorded{{Container: "c1", Host: podLink, Addresses: []netip.Prefix{prefix("10.5.34.9/24")}}, {Container: "c2", Addresses: []netip.Prefix{prefix("10.5.34.10/24")}}}
	f.Announced, f.Network = prefix("10.5.34.1/24"), prefix("10.5.0.0/16")
	f.CNI.Files = []cnidir.File{ours("10-tenure.conflist"), {Name: "87-podman.conflist", Network: "podman", Types: []string{"bridge"}}}
	return f
}

// dual gives the node of running both families.
func dual(f *Facts) {
	f.Sysctls[ipForward6] = "1"
	f.Status.Network6, f.Status.Subnet6 = "fd00:5::/48", "fd00:5:0:22::/64"
	f.Links["tenure6.1"] = Link{Kind: "vxlan", MTU: 1430, Up: true, VNI: 1, Port: 8472}
	for name, gateway := range map[string]string{"tenure0": "fd00:5:0:22::1/64", "tenure.1": ""} {
		l := f.Links[name]
		l.MTU = 1430
		if gateway != "" {
			l.Addrs = append(l.Addrs, prefix(gateway))
		}
		f.Links[name] = l
	}
	f.Ledger[0].Addresses = append(f.Ledger[0].Addresses, prefix("fd00:5:0:22::9/64"))
	f.Announced6, f.Network6 = prefix("fd00:5:0:22::1/64"), prefix("fd00:5::/48")
	f.Status.PublicIP, f.Status.PublicIP6 = "192.0.2.11", "2001:db8::11"
	eth0 := f.Links["eth0"]
	eth0.Addrs = append(eth0.Addrs, prefix("2001:db8::11/64"), prefix("fe80::11/64"))
	eth0.Unfit = map[netip.Addr]string{netip.MustParseAddr("fe80::11"): "not of global scope"}
	f.Links["eth0"] = eth0
}

func ours(name string) cnidir.File {
	return cnidir.File{Name: name, Network: "tenure", Types: []string{"tenure", "portmap"}, Socket: "/run/tenure/tenured.sock"}
}

// worse are the findings that are not well, with the severity before the code.
func worse(f Facts, least Severity) []string {
	var all []string
	for _, one := range Judge(f) {
		if one.Severity.rank() <= least.rank() {
			all = append(all, string(one.Severity)+" "+one.Code)
		}
	}
	return all
}

func TestNothingWrong(t *testing.T) {
	if got := worse(running(), Info); len(got) > 0 {
		t.Errorf("on a healthy node: %q", got)
	}
	both := running()
	dual(&both)
	if got := worse(both, Info); len(got) > 0 {
		t.Errorf("on a healthy node of both families: %q", got)
	}
	if got := strings.Join(worse(bare(), Info), ", "); got != "info daemon, info forwarding, info run-dir, info state-dir, info cni-conf" {
		t.Errorf("on a host before the installation: %s", got)
	}
	// Nothing known is nothing wrong.
	if got := worse(Facts{Instance: "tenure", CNI: bare().CNI, IPTables: bare().IPTables}, Warning); len(got) > 0 {
		t.Errorf("knowing nothing: %q", got)
	}
}

// TestEachFinding breaks one thing of a healthy node at a time: exactly that is
// found, with its severity, the actual value as evidence, and what repairs it.
func TestEachFinding(t *testing.T) {
	link := func(name string, change func(*Link)) func(*Facts) {
		return func(f *Facts) {
			l := f.Links[name]
			change(&l)
			f.Links[name] = l
		}
	}
	sysctl := func(path, value string) func(*Facts) {
		return func(f *Facts) { f.Sysctls[path] = value }
	}
	both := func(change func(*Facts)) func(*Facts) {
		return func(f *Facts) { dual(f); change(f) }
	}
	for _, c := range []struct {
		name           string
		change         func(*Facts)
		want           string
		evidence, fixt string
	}{
		{"old kernel", func(f *Facts) { f.Kernel = "5.7.19-custom" }, "error kernel", "5.7.19", "newer kernel"},
		{"time namespace", func(f *Facts) { f.Clock.Offset = time.Hour }, "error clock", "1h0m0s", "timens_offsets"},
		{"clock unknown", func(f *Facts) { f.Clock.Err = "denied" }, "error clock", "denied", ""},
		{"fence refused", func(f *Facts) { f.Trials.Fence = "operation not permitted" }, "error bpf", "not permitted", "lockdown"},
		{"no vxlan", func(f *Facts) { f.Trials.Vxlan = "not supported" }, "error link-types", "vxlan: not supported", "modprobe -a vxlan"},
		{"not root", func(f *Facts) { f.Root, f.Trials = false, nil }, "info not-root", "", ""},
		{"no iptables", func(f *Facts) { f.IPTables = IPTables{} }, "error iptables", "PATH", "apt-get install iptables"},
		{"no rule", func(f *Facts) { f.Trials.Masquerade = "no such target" }, "error iptables", "no such target", "modprobe"},
		{"old iptables", func(f *Facts) { f.Trials.RandomFully = "unknown option" }, "warning iptables", "unknown option", "upgrade"},
		{"no raw table", func(f *Facts) { f.Trials.NoTrack = "no table" }, "warning notrack", "no table", "iptable_raw"},
		{"routing off", sysctl(ipForward, "0"), "error forwarding", "ip_forward = 0", "sysctl -w net/ipv4/ip_forward=1"},
		{"overlay does not route", sysctl(confOf("tenure.1", "forwarding"), "0"), "error forwarding", "tenure.1/forwarding = 0", "sysctl -w net/ipv4/conf/tenure.1/forwarding=1"},
		{"IPv6 is not routed", func(f *Facts) { f.Status.Network6, f.Sysctls[ipForward6] = "fd00:5::/48", "0" }, "error forwarding", "ipv6/conf/all/forwarding = 0", "sysctl -w net/ipv6/conf/all/forwarding=1"},
		{"IPv6 alone needs no IPv4", both(func(f *Facts) {
			f.Status.Network, f.Status.Subnet, f.Status.PublicIP = "", "", ""
			f.Sysctls[ipForward], f.Announced, f.Network = "0", netip.Prefix{}, netip.Prefix{}
			link("tenure0", func(l *Link) { l.Addrs = l.Addrs[1:] })(f)
			link("eth0", func(l *Link) { l.Addrs = l.Addrs[1:] })(f)
		}), "", "", ""},
		{"read-only", func(f *Facts) { f.ReadOnlySysctls = true }, "error read-only-sysctls", "ro", "remount"},
		{"strict, one way", sysctl(confOf("all", "rp_filter"), "1"), "info rp-filter", "all 1, eth0 0", ""},
		{"strict, other way", func(f *Facts) {
			f.Sysctls[confOf("eth0", "rp_filter")] = "1"
			f.Ways[netip.MustParseAddr("192.0.2.13")] = "eth1"
		}, "error rp-filter", "192.0.2.13 by eth1", "sysctl -w net/ipv4/conf/eth0/rp_filter=2"},
		{"strict, IPv6 another way", func(f *Facts) {
			f.Sysctls[confOf("eth0", "rp_filter")] = "1"
			f.Ways[netip.MustParseAddr("2001:db8::c")] = "eth1"
		}, "info rp-filter", "eth0 1", ""},
		{"direct routes, fenced", func(f *Facts) {
			f.Uplink = Uplink{"clsact", []string{"eth0"}, []string{"10.5.35.0/24 via 192.0.2.12 dev eth0"}}
		}, "", "", ""},
		{"direct routes, not fenced", func(f *Facts) { f.Uplink.Routes = []string{"10.5.35.0/24 via 192.0.2.12 dev eth0"} }, "error uplink-fence", "via 192.0.2.12", "start tenured"},
		{"a fence is left", func(f *Facts) { f.Status, f.Uplink.Fenced = nil, []string{"eth0"} }, "error daemon, warning uplink-fence", "", "systemctl"},
		{"no place for the fence", func(f *Facts) { f.Uplink.Qdisc = "ingress" }, "info uplink-fence", "tc qdisc show dev eth0", ""},
		{"no br_netfilter", func(f *Facts) { delete(f.Sysctls, bridgeNF) }, "info bridge-netfilter", "not loaded", ""},
		{"kube-proxy unheard", func(f *Facts) { f.Sysctls[bridgeNF], f.KubeProxy = "0", true }, "warning bridge-netfilter", "= 0", "modprobe br_netfilter"},
		{"few neighbours", sysctl("net/ipv4/neigh/default/gc_thresh3", "5"), "warning neighbour-limits", "128, 512, 5; 2 pods, 2 peers", "sysctl -w net.ipv4.neigh.default.gc_thresh3=4096"},
		{"neighbours were full", func(f *Facts) { f.Neighbours = Neighbours{1024, 7} }, "warning neighbour-limits", "full 7 times", "net.ipv4.neigh.default.gc_thresh3"},
		{"few neighbours of IPv6", both(sysctl("net/ipv6/neigh/default/gc_thresh3", "3")), "warning neighbour-limits", "IPv6: gc_thresh1..3 = 128, 512, 3; 1 pods, 2 peers", "sysctl -w net.ipv6.neigh.default.gc_thresh3=4096"},
		{"few neighbours of IPv6, and no pods of it", sysctl("net/ipv6/neigh/default/gc_thresh3", "0"), "", "", ""},
		{"neighbours of IPv6 were full", both(func(f *Facts) { f.Neighbours6 = Neighbours{1024, 7} }), "warning neighbour-limits", "full 7 times", "net.ipv6.neigh.default.gc_thresh3"},
		{"connections many", sysctl(conntrackCount, "220000"), "warning conntrack-limit", "220000 of 262144", "=1048576"},
		{"connections full", sysctl(conntrackCount, "262144"), "error conntrack-limit", "262144 of 262144", "sysctl -w net/netfilter/nf_conntrack_max"},
		{"small underlay", func(f *Facts) {
			link("eth0", func(l *Link) { l.MTU = 1300 })(f)
			link("tenure0", func(l *Link) { l.MTU = 1250 })(f)
			link("tenure.1", func(l *Link) { l.MTU = 1250 })(f)
		}, "warning mtu", "eth0 1300", "ip link set eth0 mtu 1500"},
		{"overlay too large", link("eth0", func(l *Link) { l.MTU = 1400 }), "error mtu", "eth0 1400, tenure.1 1450", "ip link set eth0 mtu 1500"},
		{"bridge differs", link("tenure0", func(l *Link) { l.MTU = 1500 }), "warning mtu", "tenure0 1500", "ip link set tenure0 mtu 1450"},
		{"IPv6 overlay too large", func(f *Facts) {
			f.Links["tenure6.1"] = Link{Kind: "vxlan", MTU: 1450, Up: true}
		}, "error mtu", "eth0 1500, tenure.1 1450, tenure6.1 1450", "ip link set eth0 mtu 1520"},
		{"bridge larger than the lesser overlay", func(f *Facts) {
			f.Links["tenure6.1"] = Link{Kind: "vxlan", MTU: 1430, Up: true}
		}, "warning mtu", "tenure6.1 1430, tenure0 1450", "ip link set tenure0 mtu 1430"},
		{"run dir on a disk", func(f *Facts) { f.Run.Volatile = false }, "warning run-dir", "on a disk", "tmpfs"},
		{"state dir in memory", func(f *Facts) { f.State.Volatile = true }, "warning state-dir", "in memory", "disk"},
		{"full", func(f *Facts) { f.Run.Free = 0 }, "error run-dir", "0 of 2048 MiB", "df -h"},
		{"no inode", func(f *Facts) { f.State.Files = 100 }, "error state-dir", "0 of 100 inodes", "df -i"},
		{"nearly full", func(f *Facts) { f.State.Free = 1 << 20 }, "warning state-dir", "1 of 2048 MiB", "df -h"},
		{"read-only directory", func(f *Facts) { f.State.ReadOnly = true }, "error state-dir", "/var/lib/tenure", "findmnt"},
		{"a file instead", func(f *Facts) { f.Run.Err = "is not a directory" }, "error run-dir", "not a directory", "ls -ld"},
		{"no portmap", func(f *Facts) { delete(f.CNI.Programs, "portmap") }, "error cni-plugins", "portmap (for 10-tenure.conflist)", "cp /usr/lib/cni/portmap /opt/cni/bin/"},
		{"no tenure", func(f *Facts) { delete(f.CNI.Programs, "tenure") }, "error cni-plugins", "tenure", "tenurectl install --from"},
		{"no conflist", func(f *Facts) { f.CNI.Files = f.CNI.Files[1:] }, "warning cni-conf", "87-podman.conflist", "--cni-conf-file"},
		{"spoilt conflist", func(f *Facts) { f.CNI.Files[1] = cnidir.File{Name: "x.conf", Err: "unexpected end"} }, "warning cni-conf", "x.conf: unexpected end", ".off"},
		{"no directory", func(f *Facts) { f.CNI.Files, f.CNI.ConfErr = nil, "denied" }, "warning cni-conf", "denied", "--cni-conf-dir"},
		{"another is first", func(f *Facts) { f.CNI.Files[0], f.CNI.Files[1] = f.CNI.Files[1], f.CNI.Files[0] }, "error cni-conf-order", "87-podman.conflist, 10-tenure", "mv /etc/cni/net.d/87-podman.conflist"},
		{"two of ours", func(f *Facts) { f.CNI.Files[1] = ours("20-tenure.conf") }, "warning cni-conf-twice", "20-tenure.conf", "rm /etc/cni/net.d/20-tenure.conf"},
		{"another socket", func(f *Facts) { f.CNI.Files[0].Socket = "/run/other.sock" }, "warning cni-conf", "/run/other.sock", "--socket"},
		{"flannel", func(f *Facts) { f.Links["flannel.7"] = Link{Kind: "vxlan", VNI: 7, Port: 8472, Up: true} }, "warning other-overlay", "flannel.7: VNI 7", "ip link del flannel.7"},
		{"flannel of IPv6", func(f *Facts) { f.Links["flannel-v6.7"] = Link{Kind: "vxlan", VNI: 7, Port: 8472, Up: true} }, "warning other-overlay", "flannel-v6.7: VNI 7", "ip link del flannel-v6.7"},
		{"same VNI as IPv6's", func(f *Facts) {
			f.Links["tenure6.7"] = Link{Kind: "vxlan", MTU: 1450 - 20, Up: true, VNI: 7, Port: 8472}
			f.Links["vx7"] = Link{Kind: "vxlan", VNI: 7, Port: 8472, Up: true}
			link("tenure0", func(l *Link) { l.MTU = 1430 })(f)
		}, "error other-overlay", "vx7", "ip link del vx7"},
		{"same VNI", func(f *Facts) { f.Links["flannel.1"] = Link{Kind: "vxlan", VNI: 1, Port: 8472, Up: true} }, "error other-overlay", "VNI 1, port 8472", "ip link del flannel.1"},
		{"another vxlan", func(f *Facts) { f.Links["vx9"] = Link{Kind: "vxlan", VNI: 9, Port: 4789} }, "info other-overlay", "vx9", ""},
		{"docker in the subnet", func(f *Facts) {
			f.Links["docker0"] = Link{Kind: "bridge", Addrs: []netip.Prefix{prefix("10.5.34.129/25")}}
		}, "error address-overlap", "10.5.34.129/25 on docker0", "docker0"},
		{"docker in the network", func(f *Facts) {
			f.Links["docker0"] = Link{Kind: "bridge", Addrs: []netip.Prefix{prefix("10.5.99.1/24")}}
		}, "warning address-overlap", "docker0, network 10.5.0.0/16", "docker0"},
		{"docker in the subnet of IPv6", both(func(f *Facts) {
			f.Links["docker0"] = Link{Kind: "bridge", Addrs: []netip.Prefix{prefix("fd00:5:0:22:8000::1/65")}}
		}), "error address-overlap", "fd00:5:0:22:8000::1/65 on docker0, subnet fd00:5:0:22::/64", "docker0"},
		{"docker in the network of IPv6", both(func(f *Facts) {
			f.Links["docker0"] = Link{Kind: "bridge", Addrs: []netip.Prefix{prefix("fd00:5:0:99::1/64")}}
		}), "warning address-overlap", "docker0, network fd00:5::/48", "docker0"},
		{"docker elsewhere", both(func(f *Facts) {
			f.Links["docker0"] = Link{Kind: "bridge", Addrs: []netip.Prefix{prefix("fd00:6::1/64"), prefix("fe80::1/64")}}
		}), "", "", ""},
		{"no gateway of IPv6", both(link("tenure0", func(l *Link) { l.Addrs = l.Addrs[:1] })), "error bridge", "want 10.5.34.1/24, fd00:5:0:22::1/64", "journalctl"},
		{"other subnet of IPv6 announced", both(func(f *Facts) { f.Announced6 = prefix("fd00:5:0:23::1/64") }), "warning subnet-env", "fd00:5:0:23::1/64, held fd00:5:0:22::/64", "journalctl"},
		{"underlay's IPv4 gone", both(link("eth0", func(l *Link) { l.Addrs = l.Addrs[1:] })), "error underlay-address", "there is none", "give eth0 one"},
		{"underlay's IPv6 gone", both(link("eth0", func(l *Link) { l.Addrs = []netip.Prefix{l.Addrs[0], l.Addrs[2]} })), "error underlay-address", "there is none", "give eth0 one"},
		{"underlay's IPv6 on its way out", both(link("eth0", func(l *Link) {
			l.Unfit = map[netip.Addr]string{l.Addrs[1].Addr(): "deprecated", l.Addrs[2].Addr(): "not of global scope"}
		})), "warning underlay-address", "2001:db8::11 is deprecated", "give eth0 one"},
		{"underlay's IPv6 gone, and no pods of it", func(f *Facts) { f.Status.PublicIP6 = "2001:db8::11" }, "", "", ""},
		{"underlay's IPv6 missing since the start", both(func(f *Facts) {
			f.Links["eth0"] = Link{MTU: 1500, Up: true, Addrs: f.Links["eth0"].Addrs[:1]}
			f.Status.Problems = []api.Problem{{Code: "underlay-missing", Severity: api.SeverityError, Text: "no IPv6 address", Fix: "give one"}}
		}), "error underlay-missing", "", "give one"},
		{"ptp's pods", func(f *Facts) {
			f.Links["veth1"] = Link{Kind: "veth", Addrs: []netip.Prefix{prefix("10.5.34.1/32")}}
		}, "", "", ""},
		{"managed", link("tenure0", func(l *Link) { l.Manager = networkd }), "warning link-manager", networkd, "Unmanaged=yes"},
		{"managed by NetworkManager", link("tenure.1", func(l *Link) { l.Manager = networkManager }), "warning link-manager", networkManager, "nmcli device set tenure.1 managed no"},
		{"IPv6's overlay is managed", func(f *Facts) {
			f.Links["tenure6.1"] = Link{Kind: "vxlan", MTU: 1430, Up: true, Manager: networkManager}
			link("tenure0", func(l *Link) { l.MTU = 1430 })(f)
		}, "warning link-manager", networkManager, "nmcli device set tenure6.1 managed no"},
		{"no gateway", link("tenure0", func(l *Link) { l.Addrs = nil }), "error bridge", "want 10.5.34.1/24", "journalctl"},
		{"no bridge", func(f *Facts) { delete(f.Links, "tenure0") }, "error bridge", "tenure0", "journalctl"},
		{"ledger spoilt", func(f *Facts) { f.Ledger, f.LedgerErr = nil, "unexpected end" }, "warning ledger", "unexpected end", "systemctl restart tenured"},
		{"pod without interface", func(f *Facts) { delete(f.Links, podLink) }, "warning interface-missing", podLink + " of container c1", "crictl"},
		{"interface without record", func(f *Facts) { f.Links["tenx"] = Link{Alias: alias("tenure", "c9")} }, "warning interface-unknown", "tenx of container c9", "restart tenured"},
		{"pod comes", func(f *Facts) {
			delete(f.Links, podLink)
			f.Early = map[string]bool{}
		}, "", "", ""},
		{"pod goes", func(f *Facts) {
			f.Links["tenx"] = Link{Alias: alias("tenure", "c9")}
			f.Early = map[string]bool{podLink: true}
		}, "", "", ""},
		{"still without interface", func(f *Facts) {
			delete(f.Links, podLink)
			f.Early = map[string]bool{podLink: true}
		}, "warning interface-missing", podLink, "crictl"},
		{"IPv6 not routed, and no pods of it", func(f *Facts) { f.Sysctls[ipForward6] = "0" }, "", "", ""},
		{"IPv4 not routed, and pods of IPv6 alone", func(f *Facts) {
			f.Sysctls[ipForward], f.Sysctls[ipForward6], f.Status.Network, f.Status.Network6 = "0", "1", "", "fd00:5::/48"
		}, "", "", ""},
		{"routing off, no subnet", func(f *Facts) { f.Sysctls[ipForward], f.Status.Subnet = "0", "" }, "info forwarding", "= 0", ""},
		{"another instance's pod", func(f *Facts) { f.Links["tenx"] = Link{Alias: alias("b", "c9")} }, "", "", ""},
		{"other subnet announced", func(f *Facts) { f.Announced = prefix("10.5.35.1/24") }, "warning subnet-env", "10.5.35.1/24, held 10.5.34.0/24", "journalctl"},
		{"daemon silent", func(f *Facts) { f.Status, f.StatusErr = nil, "timeout" }, "error daemon", "timeout", "systemctl status"},
		{"daemon not to be asked", func(f *Facts) { f.Status, f.StatusErr, f.Root = nil, "permission denied", false }, "info daemon", "denied", ""},
		{"problem", func(f *Facts) {
			f.Status.Problems = []api.Problem{{Code: "foreign", Severity: api.SeverityWarning, Text: "a route", Since: "today", Fix: "remove it"}}
		}, "warning foreign", "since today", "remove it"},
		{"not ready", func(f *Facts) { f.Status.Ready, f.Status.State = false, api.StateFenced }, "error not-ready", "state fenced", "tenurectl status"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := running()
			c.change(&f)
			if got := strings.Join(worse(f, Info), ", "); got != c.want {
				t.Fatalf("found %q, want %q", got, c.want)
			}
			if c.want == "" {
				return
			}
			first := Judge(f)[0]
			if first.Text == "" || !strings.Contains(first.Evidence, c.evidence) || !strings.Contains(first.Fix, c.fixt) {
				t.Errorf("%+v, want evidence %q and fix %q", first, c.evidence, c.fixt)
			}
			if first.Severity != Info && first.Fix == "" {
				t.Errorf("%s has no fix", first.Code)
			}
			if Failed(Judge(f)) != strings.HasPrefix(c.want, "error") {
				t.Errorf("failed is %t", Failed(Judge(f)))
			}
		})
	}
}

func TestTooOld(t *testing.T) {
	for release, want := range map[string]bool{
		"5.8.0": false, "5.8": false, "6.18.44-x": false, "10.0": false, "5.7.99": true, "4.19.0-26-amd64": true, "": false, "unknown": false, "6": false,
	} {
		if tooOld(release) != want {
			t.Errorf("%q: too old is %t", release, !want)
		}
	}
}

func TestParseNeighbours(t *testing.T) {
	const text = "entries  allocs table_fulls\n0000064b 0002e2a4 00000002\n0000064b 0002b035 00000010\n"
	if got, want := parseNeighbours([]byte(text)), (Neighbours{0x64b, 18}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := parseNeighbours(nil); got != (Neighbours{}) {
		t.Errorf("nothing is %+v", got)
	}
}

// TestInPodNetwork: the direct routes of both families are those of the instance.
func TestInPodNetwork(t *testing.T) {
	for _, c := range []struct {
		network, network6, dst string
		want                   bool
	}{
		{"10.5.0.0/16", "", "10.5.35.0/24", true},
		{"10.5.0.0/16", "", "10.6.35.0/24", false},
		{"10.5.0.0/16", "fd00:5::/48", "fd00:5:0:23::/64", true},
		{"", "fd00:5::/48", "fd00:5:0:23::/64", true},
		{"", "fd00:5::/48", "fd00:6:0:23::/64", false},
		{"", "fd00:5::/48", "10.5.35.0/24", false},
		{"", "", "10.5.35.0/24", true},
	} {
		_, dst, err := net.ParseCIDR(c.dst)
		if err != nil {
			t.Fatal(err)
		}
		f := &Facts{Status: &api.Status{Network: c.network, Network6: c.network6}}
		if got := f.inPodNetwork(netlink.Route{Dst: dst}); got != c.want {
			t.Errorf("%s in %q and %q: %t", c.dst, c.network, c.network6, got)
		}
	}
}

// TestUplinkFenceAmongOthers are findings that come with others.
func TestUplinkFenceAmongOthers(t *testing.T) {
	left, taken := running(), running()
	left.Status, left.Uplink.Fenced = nil, []string{"eth0"}
	taken.Uplink.Qdisc = "ingress"
	taken.Status.Problems = []api.Problem{{Code: "data-plane", Severity: api.SeverityError, Text: "fence attach eth0 as uplink: no", Fix: "see the log"}}
	for fix, facts := range map[string]Facts{"tenurectl uninstall": left, "move its filters to clsact": taken} {
		if !slices.ContainsFunc(Judge(facts), func(f Finding) bool {
			return f.Code == "uplink-fence" && strings.Contains(f.Fix, fix) && f.Evidence != ""
		}) {
			t.Errorf("no finding says %q: %+v", fix, Judge(facts))
		}
	}
}

// TestSizesWithPlainRoutes: without an overlay nothing is taken from the MTU.
func TestSizesWithPlainRoutes(t *testing.T) {
	f := running()
	delete(f.Links, "tenure.1")
	f.Status.MTU = 1500
	for _, one := range Judge(f) {
		if one.Code == "mtu" && !strings.HasSuffix(one.Text, "pods can have 1500") {
			t.Errorf("%s %q", one.Severity, one.Text)
		}
	}
}

func TestWithin(t *testing.T) {
	both := &api.Status{Network: "10.5.0.0/16", Network6: "fd00:5::/48"}
	for address, s := range map[string]*api.Status{"10.5.1.0": both, "fd00:5:0:1::": both, "192.0.2.1": {}} {
		if !within(s, netip.MustParseAddr(address)) {
			t.Errorf("%s is outside of %q and %q", address, s.Network, s.Network6)
		}
	}
	for address, s := range map[string]*api.Status{"10.6.1.0": both, "fd00:6::": both, "2001:db8::": {Network: "10.5.0.0/16"}} {
		if within(s, netip.MustParseAddr(address)) {
			t.Errorf("%s is within %q or %q", address, s.Network, s.Network6)
		}
	}
}
