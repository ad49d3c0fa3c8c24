package ownership

import (
	"net/netip"
	"time"
)

// Evidence is all that is known about a run. The zero value of each field means
// that nothing was collected of its kind.
type Evidence struct {
	// Prefix is --etcd-prefix, below which every key of History lies.
	Prefix string
	// History is what etcd went through.
	History History
	// Packets are those that arrived, in any order.
	Packets []Packet
	// Samples are looks at fences, in any order.
	Samples []Sample
	// Ops are calls of clients that were listened to, in any order.
	Ops []Op
	// Foreign are writes that the run itself made past the protocol, by hand.
	Foreign []Foreign
	// Machines names machines by the address that they announce, where two may bear
	// one name: a copied disk, for example. For all others the name in the record
	// counts.
	Machines map[string]string
}

// Beginning is how a life of the store began.
type Beginning int

const (
	// Born is the first life: the history is there from revision 1.
	Born Beginning = iota
	// Wiped is a life that begins empty.
	Wiped
	// Restored is a life that begins with an older state.
	Restored
	// Resumed is the same store after a stretch that nobody could record, for
	// example one that was compacted away while the recorder was cut off.
	Resumed
)

// History is the lives of a store, the oldest first.
type History struct{ Lives []Life }

// Life is a stretch of a store's history without a hole: revisions only grow in
// it.
type Life struct {
	Beginning Beginning
	// Began is when it began, at the latest.
	Began time.Duration
	// Base is the prefix as it was when the life began: empty if Born or Wiped.
	Base []KV
	// Events are in the order of their revisions.
	Events []Event
	// Whole says that Events reach to the last revision of this life. It is
	// false where the store was destroyed before the recorder had read it all.
	Whole bool
}

// KV is a key as etcd has it.
type KV struct {
	Key    string
	Value  string
	Lease  int64
	Create int64 // the revision that created it
	Mod    int64 // the revision that wrote it last
}

// Event is one change of one key. Several of one revision are one transaction.
type Event struct {
	// KV is the key as it is from now on. Of a deletion only Key and Mod, which
	// is the revision that deleted it, are set.
	KV
	Deleted bool
	// Prev is the key as it was before, nil if it did not exist.
	Prev *KV
	// After and Seen are two instants between which it was committed. After 0
	// is unknown.
	After, Seen time.Duration
	// LeaseAlive says of a deletion that Prev's lease was found alive after it:
	// whatever deleted the key, it was not the end of its lease.
	LeaseAlive bool
}

// Foreign is a write past the protocol that the run made on purpose: what it did
// to the key is not held against the nodes.
type Foreign struct {
	// Life is the index in History.Lives, Revision what etcd said.
	Life     int
	Revision int64
	// Why is for people.
	Why string
}

// End is one end of a packet.
type End struct {
	// Node is the name of the node that the pod runs on, as in its record.
	Node string
	// Addr is the pod's address.
	Addr netip.Addr
	// Subnet and Epoch are what the node held when the packet was sent, as far
	// as the sender could tell; zero values are "not known".
	Subnet netip.Prefix
	Epoch  int64
}

// Packet is a probe that arrived. From and Sent are what it carried.
type Packet struct {
	From, To End
	// Source is where it came from as the receiver saw it. Where that is not
	// From.Addr, it was NATed on the way and is not judged.
	Source netip.Addr
	// Sent was read before it was sent, Received after it was received.
	Sent, Received time.Duration
}

// Sample is one look at the fence of one node.
type Sample struct {
	Node string
	// Began was read before the look, Ended after it.
	Began, Ended time.Duration
	// Subnet is what the fence lets through, Deadline until when; 0 is closed.
	Subnet   netip.Prefix
	Deadline time.Duration
}

// Rule is what a violation breaks.
type Rule string

// The rules. The first four are P1, the others P2.
const (
	// TwoTenants: two nodes used overlapping subnets at one instant.
	TwoTenants Rule = "two-tenants"
	// LatePacket: a packet from or to a subnet after its next owner's key was
	// created.
	LatePacket Rule = "late-packet"
	// OpenFence: a fence was open for a subnet whose key was another's, had
	// ended, or had never been this node's.
	OpenFence Rule = "open-fence"
	// PastDeadline: a deadline beyond what the lease allows, or a packet that
	// passed after the deadline.
	PastDeadline Rule = "past-deadline"
	// NoLease: a subnet's key without a lease.
	NoLease Rule = "no-lease"
	// Overwritten: a write over a key that is not the writer's.
	Overwritten Rule = "overwritten"
	// Deleted: a key was deleted neither by leaving nor by the end of its lease.
	Deleted Rule = "deleted"
	// Overlap: a key was created while another one overlapped it.
	Overlap Rule = "overlap"
	// EpochBack: an ownership whose epoch is not above those before it.
	EpochBack Rule = "epoch-back"
	// NoOwner: a subnet's key came to another tenant without an owner's record
	// in the same transaction.
	NoOwner Rule = "no-owner"
	// DuringSettle: while settle stood a subnet was acquired, or moved to another
	// lease by a node whose fence was closed.
	DuringSettle Rule = "during-settle"
	// Reserved: a subnet that is reserved for another node was acquired.
	Reserved Rule = "reserved"
	// Uncompared: a write was asked for that compares too little.
	Uncompared Rule = "uncompared"
	// NotLinear: what clients saw of a key fits no order of their calls.
	NotLinear Rule = "not-linear"
	// Malformed: a key or record that no node would have written.
	Malformed Rule = "malformed"
)

// Violation is one thing that must not be.
type Violation struct {
	Rule Rule
	// Subnet is what it is about.
	Subnet string
	// At is when, at the latest; 0 if that is unknown.
	At time.Duration
	// Text says in one line who did what, and why it must not be.
	Text string
}

// String is the violation in one line.
func (v Violation) String() string {
	return string(v.Rule) + ": " + v.Subnet + ": " + v.Text
}
