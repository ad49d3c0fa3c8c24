package ownership

import (
	"math"
	"time"
)

// Never is when a call returned whose outcome is not known.
const Never = time.Duration(math.MaxInt64)

// Tapped is the Client of what Ops.Tap noted: the request is known, and of an
// answer nothing.
const Tapped = -1

// OpKind is what a call asks of etcd.
type OpKind int

const (
	// OpTxn is a transaction that compares or writes a subnet's key.
	OpTxn OpKind = iota
	// OpRenew is a grant or a keep-alive of a lease.
	OpRenew
	// OpBare is a Put or DeleteRange outside of a transaction.
	OpBare
)

// Op is one call of one client, of which the part is kept that is about one
// subnet's key or one lease.
type Op struct {
	// Client numbers the recorder's clients, Node names whose it is.
	Client int
	Node   string
	Kind   OpKind
	// Key is the subnet's key, empty of a renewal.
	Key string
	// Call was read before the request was sent, Return when its answer was
	// there; Never if none came.
	Call, Return time.Duration

	// Compares are those of the key, and Others says that the transaction
	// compares other keys too.
	Compares []Compare
	Others   bool
	// Put and Delete say what it does to the key if the compares hold. Lease is
	// that of the put, or of a renewal.
	Put, Delete bool
	Lease       int64

	// Succeeded is the transaction's outcome, Revision that of the answer's
	// header, TTL what a renewal was granted; all are zero if Return is Never.
	Succeeded bool
	Revision  int64
	TTL       time.Duration
}

// Target is what a compare looks at.
type Target int

// The targets that the protocol knows.
const (
	ByOther Target = iota
	ByCreate
	ByMod
	ByLease
)

// Compare is an equality of one field of a key.
type Compare struct {
	Target Target
	Value  int64
}
