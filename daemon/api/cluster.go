package api

import "time"

// This file has the objects of tenurectl's cluster verbs, as -o json prints
// them. Fields are only ever added.

// PathEtcd answers GET with an EtcdAccess.
const PathEtcd = "/v1/etcd"

// EtcdAccess says how this node's tenured reaches etcd: where, under which
// prefix, as whom. Of secrets it has the files' paths, never what is in them.
type EtcdAccess struct {
	// Node and UID are this node's own.
	Node string `json:"node"`
	UID  string `json:"uid"`
	// Endpoints, Prefix and the rest are as tenured was given them, its
	// defaults filled in; file paths are absolute.
	Endpoints    []string `json:"endpoints"`
	Prefix       string   `json:"prefix"`
	CAFile       string   `json:"caFile,omitempty"`
	CertFile     string   `json:"certFile,omitempty"`
	KeyFile      string   `json:"keyFile,omitempty"`
	Username     string   `json:"username,omitempty"`
	PasswordFile string   `json:"passwordFile,omitempty"`
}

// SubnetState is how a subnet stands in the cluster.
type SubnetState string

// The states of a subnet.
const (
	// SubnetHeld: its key hangs on a lease that is being renewed, or whose
	// renewals were not asked for.
	SubnetHeld SubnetState = "held"
	// SubnetDying: its lease was not renewed for three intervals.
	SubnetDying SubnetState = "dying"
	// SubnetReleased: it was taken from its node by force, and is nobody's
	// until the lease ends.
	SubnetReleased SubnetState = "released"
	// SubnetReserved: nobody holds it, and only one node may acquire it.
	SubnetReserved SubnetState = "reserved"
	// SubnetFree: anybody may acquire it.
	SubnetFree SubnetState = "free"
)

// ClusterLeases is the object of tenurectl leases.
type ClusterLeases struct {
	Prefix   string         `json:"prefix"`
	Network  string         `json:"network"`
	Store    string         `json:"store"`
	Revision int64          `json:"revision"`
	Leases   []ClusterLease `json:"leases"`
	// Problems are those of the whole cluster that can be seen in etcd.
	Problems []Problem `json:"problems"`
}

// ClusterLease is one node's record in etcd.
type ClusterLease struct {
	// Node is empty for a record of flannel's.
	Node     string      `json:"node"`
	UID      string      `json:"uid"`
	Subnet   string      `json:"subnet"`
	Subnet6  string      `json:"subnet6,omitempty"`
	PublicIP string      `json:"publicIP"`
	Epoch    int64       `json:"epoch"`
	State    SubnetState `json:"state"`
	// Mine: it is the node's whose socket was asked.
	Mine bool `json:"mine"`
	// Lease is in hexadecimal, as etcdctl prints it.
	Lease string `json:"lease"`
	// TTLSeconds is the lease's length as granted, RemainingSeconds what is
	// left of it, LastHeardSecondsAgo the time since its last renewal. They are
	// absent where etcd was not asked or did not answer; 0 left is a lease that
	// has ended.
	TTLSeconds          *int64 `json:"ttlSeconds,omitempty"`
	RemainingSeconds    *int64 `json:"remainingSeconds,omitempty"`
	LastHeardSecondsAgo *int64 `json:"lastHeardSecondsAgo,omitempty"`
	// Odd says in words what is unusual; empty is nothing.
	Odd []string `json:"odd"`
}

// ClusterMap is the object of tenurectl map.
type ClusterMap struct {
	Network   string `json:"network"`
	SubnetLen int    `json:"subnetLen"`
	// First and Last are the first and the last subnet to be handed out.
	First  string       `json:"first"`
	Last   string       `json:"last"`
	Counts SubnetCounts `json:"counts"`
	// Subnets are those that are not free, in order of address, those outside
	// of First to Last included.
	Subnets []MappedSubnet `json:"subnets"`
}

// SubnetCounts counts the subnets from the first to the last one to be handed
// out. Total is the sum of the others but Mine, which is among Held or Dying,
// and Outside.
type SubnetCounts struct {
	Total    uint64 `json:"total"`
	Held     uint64 `json:"held"`
	Dying    uint64 `json:"dying"` // and released
	Reserved uint64 `json:"reserved"`
	Free     uint64 `json:"free"`
	Mine     uint64 `json:"mine"`
	// Outside are records that lie elsewhere.
	Outside uint64 `json:"outside"`
}

// MappedSubnet is one subnet that is held or reserved.
type MappedSubnet struct {
	Subnet string      `json:"subnet"`
	State  SubnetState `json:"state"`
	// Node holds it; empty for a reservation and for flannel.
	Node string `json:"node,omitempty"`
	// ReservedFor is the node that alone may acquire it.
	ReservedFor string `json:"reservedFor,omitempty"`
	Mine        bool   `json:"mine,omitempty"`
}

// Tenancy is one time of a node on a subnet: an element of what tenurectl
// history prints.
type Tenancy struct {
	Subnet string `json:"subnet"`
	Node   string `json:"node"`
	UID    string `json:"uid"`
	Epoch  int64  `json:"epoch"`
	// State is held, released or ended.
	State SubnetState `json:"state"`
	Since time.Time   `json:"since"`
	// Until is when the subnet was given up or taken away. It is absent while
	// it is held, and where a lease ended, which nobody writes down: then
	// EndedBefore, if there is one, is when the next node had it.
	Until       *time.Time `json:"until,omitempty"`
	EndedBefore *time.Time `json:"endedBefore,omitempty"`
	// Why says how it began, or once there is an Until how it ended.
	Why string `json:"why"`
}

// SubnetEnded is the state of a past Tenancy.
const SubnetEnded SubnetState = "ended"

// ConfigEffect is what another network config would do to the cluster: the
// object of tenurectl config set.
type ConfigEffect struct {
	// Changes are the values that change, as "LeaseTTL: 24h → 12h".
	Changes []string `json:"changes"`
	// Faults are what is wrong with the config, whoever holds what.
	Faults []string `json:"faults"`
	// Orphaned are the holders because of whom every node would refuse it.
	Orphaned []Orphan `json:"orphaned"`
	// Warnings and Notes say what is unused, and what will happen.
	Warnings []string `json:"warnings"`
	Notes    []string `json:"notes"`
	// Before and After count the subnets; Before is absent where there is no
	// usable config now.
	Before *SubnetCounts `json:"before,omitempty"`
	After  *SubnetCounts `json:"after,omitempty"`
	// Applied: it was written to etcd.
	Applied bool `json:"applied"`
}

// Refused says that no node would take the config over.
func (e ConfigEffect) Refused() bool { return len(e.Faults) > 0 || len(e.Orphaned) > 0 }

// Orphan is a held subnet that a network config has no place for.
type Orphan struct {
	Subnet string `json:"subnet"`
	Node   string `json:"node"`
	Why    string `json:"why"`
}

// Reserved is the object of tenurectl reserve and unreserve.
type Reserved struct {
	Subnet string `json:"subnet"`
	Node   string `json:"node"`
	// Changed: it was not so before.
	Changed bool `json:"changed"`
	// Notes say when the reservation will count.
	Notes []string `json:"notes"`
}

// Released is the object of tenurectl release.
type Released struct {
	Subnet string `json:"subnet"`
	// Node held it.
	Node string `json:"node"`
	// Until is when it is free at the latest; absent is now.
	Until *time.Time `json:"until,omitempty"`
}

// Born is the object of tenurectl init.
type Born struct {
	// Created: config and store were written. Adopted: the config was there,
	// and the store was added. Reconfigured: the config was missing. With none
	// of them the cluster was born before.
	Created      bool   `json:"created"`
	Adopted      bool   `json:"adopted"`
	Reconfigured bool   `json:"reconfigured"`
	Prefix       string `json:"prefix"`
	Store        string `json:"store"`
	// Config is the network config as it stands in etcd, ConfigApplied whether
	// that means the same as the one asked for.
	Config        string `json:"config"`
	ConfigApplied bool   `json:"configApplied"`
	// SettleSeconds is how long newcomers wait at most.
	SettleSeconds float64 `json:"settleSeconds,omitempty"`
}
