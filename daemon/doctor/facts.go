package doctor

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/cnidir"
)

// Facts are what Observe found. A zero value means "not known" or "not there",
// and is never judged as an error by itself.
type Facts struct {
	// Instance is tenured's --name.
	Instance string
	// Root: what only root may look at was looked at.
	Root bool
	// Kernel is the release, as uname -r prints it.
	Kernel string
	Clock  Clock
	// Trials are what was tried in a namespace of its own; nil without root.
	Trials *Trials
	// IPTables is the program that the host uses.
	IPTables IPTables
	// KubeProxy: the chain KUBE-SERVICES exists.
	KubeProxy bool
	// Sysctls are values by their path below /proc/sys.
	Sysctls map[string]string
	// ReadOnlySysctls: /proc/sys cannot be written.
	ReadOnlySysctls bool
	// Neighbours and Neighbours6 are the tables of IPv4 and of IPv6.
	Neighbours, Neighbours6 Neighbours
	// Underlay is the interface of the overlay: the daemon's word, or without
	// one that of the default route.
	Underlay string
	// Ways are the interfaces by which the peers' addresses are reached.
	Ways map[netip.Addr]string
	// Uplink is what direct routes need, or have left.
	Uplink Uplink
	// Links are the devices of the host, by name.
	Links map[string]Link
	// Run and State are the daemon's directories.
	Run, State Directory
	CNI        CNI
	// Socket is where the daemon was asked; SocketThere, that the file exists.
	Socket      string
	SocketThere bool
	// Status is what the daemon said, nil with StatusErr where it did not.
	Status    *api.Status
	StatusErr string
	// Ledger are the recorded interfaces; nil where there is no ledger.
	Ledger    []Recorded
	LedgerErr string
	// Early are the host ends that an earlier look found odd: one that only the
	// later look does belongs to a pod that just comes or goes. nil is no
	// earlier look.
	Early map[string]bool
	// Announced and Announced6 are the subnets in subnet.env, with the gateway as
	// address, and Network and Network6 the pod networks in it.
	Announced, Announced6, Network, Network6 netip.Prefix
}

// Clock is the boot clock of this process.
type Clock struct {
	// Offset is that of the time namespace.
	Offset time.Duration
	// Err says why that is not known.
	Err string
}

// Trials are errors of what was tried, "" where it went well.
type Trials struct {
	// Bridge, Veth and Vxlan are the making of such a device.
	Bridge, Veth, Vxlan string
	// Fence is the loading and attaching of the fence.
	Fence string
	// Forward, Masquerade, RandomFully and NoTrack are rules as tenured makes them.
	Forward, Masquerade, RandomFully, NoTrack string
}

// IPTables is the program iptables.
type IPTables struct {
	// Path is "" where there is none. Version is its own word.
	Path, Version string
}

// Neighbours is the kernel's table of a family's neighbours, of all namespaces.
type Neighbours struct {
	// Entries counts all, permanent ones too; Fulls how often there was no room.
	Entries, Fulls uint64
}

// Link is a device.
type Link struct {
	Kind string
	MTU  int
	Up   bool
	// Addrs are its addresses, of both families.
	Addrs []netip.Prefix
	// Unfit says of those that no other node shall be told of why.
	Unfit map[netip.Addr]string
	// Alias is the text on a pod interface's host end.
	Alias string
	// VNI and Port are those of a vxlan device.
	VNI, Port int
	// Manager is the program that says it manages the device.
	Manager string
}

// Directory is one of the daemon's directories.
type Directory struct {
	Path string
	// There is false where it does not exist; the space is then its parent's.
	There bool
	// Volatile: it lies in memory and is gone after a boot.
	Volatile bool
	// ReadOnly: the file system cannot be written.
	ReadOnly bool
	// Free and Total are in bytes, FreeFiles and Files in inodes; Files is 0
	// where the file system does not count them.
	Free, Total, FreeFiles, Files uint64
	Err                           string
}

// CNI is what the runtime reads.
type CNI struct {
	ConfDir, BinDir string
	// ConfErr says why the directory cannot be read.
	ConfErr string
	// Files are the configurations in the order in which a runtime takes them.
	Files []cnidir.File
	// Programs are those in BinDir that can be run.
	Programs map[string]bool
}

// Recorded is one pod interface in the ledger.
type Recorded struct {
	Container string
	// Host is the name of its host end, "" for one of tenure-ipam.
	Host      string
	Addresses []netip.Prefix
}

func (f Facts) bridge() string { return f.Instance + "0" }

// overlay finds the vxlan device of this instance, "" without one.
func (f Facts) overlay() string {
	for name, l := range f.Links {
		if l.Kind == "vxlan" && strings.HasPrefix(name, f.Instance+".") {
			return name
		}
	}
	return ""
}

// overlays are the vxlan devices of this instance, for either family.
func (f Facts) overlays() []string {
	var all []string
	for name, l := range f.Links {
		if l.Kind == "vxlan" && (strings.HasPrefix(name, f.Instance+".") || strings.HasPrefix(name, f.Instance+"6.")) {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}

// families are those that pods have: IPv4 where nobody says otherwise.
func (f Facts) families() (four, six bool) {
	if f.Status == nil {
		return true, false
	}
	six = f.Status.Network6 != ""
	return f.Status.Network != "" || !six, six
}

// held are the subnets that are served, by the daemon's word or subnet.env's.
func (f Facts) held() []netip.Prefix {
	if f.Status != nil {
		return valid(parsed(f.Status.Subnet), parsed(f.Status.Subnet6))
	}
	return valid(f.Announced.Masked(), f.Announced6.Masked())
}

// networks are the pod networks.
func (f Facts) networks() []netip.Prefix {
	if f.Status != nil {
		if all := valid(parsed(f.Status.Network), parsed(f.Status.Network6)); len(all) > 0 {
			return all
		}
	}
	return valid(f.Network, f.Network6)
}

// parsed is the zero Prefix for a text that is none.
func parsed(text string) netip.Prefix {
	p, _ := netip.ParsePrefix(text)
	return p
}

func valid(all ...netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(all, func(p netip.Prefix) bool { return !p.IsValid() })
}

// familyName is what a family is called; six is IPv6.
func familyName(six bool) string {
	if six {
		return "IPv6"
	}
	return "IPv4"
}
