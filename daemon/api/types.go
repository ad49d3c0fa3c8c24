package api

import (
	"encoding/json"
	"time"

	"github.com/containernetworking/cni/pkg/types"
)

// Paths of the socket's HTTP API.
const (
	// PathStatus answers GET with a Status.
	PathStatus = "/v1/status"
	// PathCNI + verb ("add", "del", "check", "gc", "status") answers POST of
	// a Request with a Response. The verbs of the plugin tenure.
	PathCNI = "/v1/cni/"
	// PathIPAM + verb is the same for the plugin tenure-ipam.
	PathIPAM = "/v1/ipam/"
)

// HeaderReceipt of a request promises a receipt: once the answer has been
// passed on, the caller writes the byte Receipt on the connection. What an ADD
// gave to a caller that goes without one is taken back.
const (
	HeaderReceipt = "Tenure-Receipt"
	Receipt       = '\n'
)

// PathLeave answers POST of a Leave with a Left.
const PathLeave = "/v1/leave"

// Leave asks a node to give its subnet up.
type Leave struct {
	// WithPods says that pods which still have addresses are to be stranded;
	// without it they are a reason to refuse.
	WithPods bool `json:"withPods,omitempty"`
}

// Left is the answer to it.
type Left struct {
	// Subnet is what was given up, empty if nothing was held.
	Subnet string `json:"subnet,omitempty"`
	// Error says why the subnet was not given up, or what is not known of it.
	Error string `json:"error,omitempty"`
}

// DefaultSocket is where tenured listens unless told otherwise.
const DefaultSocket = "/run/tenure/tenured.sock"

// Time limits of the plugin's side, from DESIGN §6: a runtime waits longer
// than each of them.
const (
	// AddTimeout bounds a whole ADD, CHECK or GC.
	AddTimeout = 28 * time.Second
	// DialWait is how long an ADD waits for the daemon to come up.
	DialWait = 10 * time.Second
	// DelDialWait is how long a DEL waits for a listener before it is queued.
	DelDialWait = 500 * time.Millisecond
	// DelTimeout is how long a DEL waits for a silent daemon before it is
	// queued.
	DelTimeout = 8 * time.Second
	// StatusTimeout bounds STATUS, the dial included.
	StatusTimeout = 800 * time.Millisecond
)

// Request is one CNI call as the runtime made it: the environment's values
// and standard input, verbatim. It is also the form of a queued DEL on disk.
type Request struct {
	ContainerID string          `json:"containerID,omitempty"`
	Netns       string          `json:"netns,omitempty"`
	IfName      string          `json:"ifName,omitempty"`
	Args        string          `json:"args,omitempty"`
	Path        string          `json:"path,omitempty"`
	Config      json.RawMessage `json:"config"`
}

// Response is the answer to a CNI call. Exactly one of Result and Error is
// set for ADD; both are empty where a verb has nothing to say.
type Response struct {
	// Result is a CNI result in the version that the configuration asks for.
	Result json.RawMessage `json:"result,omitempty"`
	// Error is what the plugin prints; it sets the exit code to 1.
	Error *types.Error `json:"error,omitempty"`
}

// State is the node's standing as a tenant, as status, metrics and logs name it.
type State string

// The states of DESIGN §3.
const (
	StateStarting State = "starting" // nothing known yet
	StateWaiting  State = "waiting"  // settle, no store, or nothing free
	StateRefused  State = "refused"  // name, config or host conflict
	StateHeld     State = "held"     // proven, in date
	StateUnproven State = "unproven" // in date, the last cycle brought no proof
	StateFenced   State = "fenced"   // the deadline has passed
	StateLost     State = "lost"     // no subnet, pods are stranded
)

// Status is the object of GET /v1/status and of tenurectl status -o json.
// Fields are only ever added.
type Status struct {
	Version string `json:"version"`
	Node    string `json:"node"`
	UID     string `json:"uid"`
	// Network and Network6 are the pod networks, "" without pods of that family.
	Network  string `json:"network"`
	Network6 string `json:"network6"`
	State    State  `json:"state"`
	Ready    bool   `json:"ready"`
	Reason   string `json:"reason"`
	Lease    *Lease `json:"lease"`
	Subnet   string `json:"subnet"`
	Subnet6  string `json:"subnet6"`
	// PublicIP and PublicIP6 are what the node announces, "" where it has none of
	// that family.
	PublicIP  string     `json:"publicIP"`
	PublicIP6 string     `json:"publicIP6"`
	Interface string     `json:"interface"`
	MTU       int        `json:"mtu"`
	Addresses Addresses  `json:"addresses"`
	Stranded  []Stranded `json:"stranded"`
	Peers     []Peer     `json:"peers"`
	Etcd      Etcd       `json:"etcd"`
	Problems  []Problem  `json:"problems"`
}

// Lease describes the etcd lease under which the subnet is held.
type Lease struct {
	// ID is in hexadecimal, as etcdctl prints it.
	ID         string `json:"id"`
	TTLSeconds int64  `json:"ttlSeconds"`
	// RemainingSeconds is the time until the kernel fence closes by itself;
	// 0 when it has.
	RemainingSeconds float64 `json:"remainingSeconds"`
	// LastProofSecondsAgo is the age of the last proof, counted from before
	// its request was sent; -1 when this process has none yet.
	LastProofSecondsAgo float64 `json:"lastProofSecondsAgo"`
	Epoch               int64   `json:"epoch"`
}

// Addresses counts the addresses of the held subnet: those of IPv4 where pods have
// one of each family, which end first.
type Addresses struct {
	// Total is how many a full subnet can give to pods.
	Total uint64 `json:"total"`
	// Used counts pods, neither the gateway nor cooling addresses.
	Used uint64 `json:"used"`
	// Cooling counts addresses that were freed less than the cool-down ago.
	Cooling uint64 `json:"cooling"`
}

// Stranded is one pod interface on a subnet that this node no longer holds.
type Stranded struct {
	Subnet      string `json:"subnet"`
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
	Address     string `json:"address"`
}

// Peer states.
const (
	PeerProgrammed  = "programmed"
	PeerPending     = "pending"
	PeerConflict    = "conflict"
	PeerUnreachable = "unreachable"
)

// Peer is another node as etcd has it and as the kernel has it.
type Peer struct {
	Node string `json:"node"`
	// Subnet is that of IPv4, or IPv6, or both with " & " between.
	Subnet string `json:"subnet"`
	// PublicIP is its IPv4 address, or that of IPv6 where it has no other.
	PublicIP string `json:"publicIP"`
	Epoch    int64  `json:"epoch"`
	// State is programmed, pending, conflict or unreachable; Reason says why
	// it is not programmed, or why it is kept though it has no record in etcd.
	State  string `json:"state"`
	Reason string `json:"reason"`
	// Path is how packets get to a programmed peer: PathDirect or PathVXLAN.
	Path string `json:"path,omitempty"`
}

// Ways to a peer.
const (
	PathDirect = "direct"
	PathVXLAN  = "vxlan"
)

// Etcd is the store as this node sees it.
type Etcd struct {
	Endpoints []Endpoint `json:"endpoints"`
	Revision  int64      `json:"revision"`
}

// Endpoint is one etcd endpoint.
type Endpoint struct {
	URL     string `json:"url"`
	Healthy bool   `json:"healthy"`
	// Since is when Healthy last changed, RFC 3339.
	Since   string `json:"since"`
	Version string `json:"version"`
	// Reason says why it is not healthy.
	Reason string `json:"reason,omitempty"`
	// Alarm is what it says of the whole store: NOSPACE or CORRUPT, as etcd names
	// them, or NEARLY FULL; empty where nothing is wrong.
	Alarm string `json:"alarm,omitempty"`
}

// Severities of a Problem.
const (
	SeverityWarning = "warning"
	SeverityError   = "error"
)

// Problem is one thing that is wrong, in words, with its repair.
type Problem struct {
	Code string `json:"code"`
	// Severity is warning or error; tenurectl exits 1 when an error stands.
	Severity string `json:"severity"`
	Text     string `json:"text"`
	// Since is when it was first seen, RFC 3339.
	Since string `json:"since"`
	// Fix says what the operator can do.
	Fix string `json:"fix"`
}
