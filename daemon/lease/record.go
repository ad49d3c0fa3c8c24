package lease

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"
)

// MAC is an Ethernet address. Its text form is lower-case hexadecimal with
// colons; the zero MAC is the empty text.
type MAC [6]byte

// String is the usual colon form.
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// MarshalText implements encoding.TextMarshaler.
func (m MAC) MarshalText() ([]byte, error) {
	if m == (MAC{}) {
		return nil, nil
	}
	return []byte(m.String()), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *MAC) UnmarshalText(b []byte) error {
	if len(b) == 0 {
		*m = MAC{}
		return nil
	}
	hw, err := net.ParseMAC(string(b))
	if err != nil {
		return fmt.Errorf("MAC %q: %w", b, err)
	}
	if len(hw) != len(m) {
		return fmt.Errorf("MAC %q: want 6 bytes", b)
	}
	copy(m[:], hw)
	return nil
}

// VTEPMAC is the token that frames of one ownership carry: a pure function of
// (etcd prefix, subnet, epoch), locally administered. A node that knows a
// later ownership of the subnet drops frames of an earlier one whatever their
// senders' clocks did, and nothing needs to be persisted to get it back.
func VTEPMAC(prefix string, s Subnets, epoch int64) MAC {
	first := s.All()[0]
	sum := sha256.Sum256([]byte(prefix + "|" + first.String() + "|" + strconv.FormatInt(epoch, 10)))
	var m MAC
	copy(m[:], sum[:])
	m[0] = m[0]&^0x01 | 0x02
	return m
}

// BackendData is flannel's vxlan data: what a peer needs to reach the node.
type BackendData struct {
	VNI     int `json:"VNI"`
	VtepMAC MAC `json:"VtepMAC"`
}

// Tenant is what Tenure adds to flannel's record: whose the subnet is.
type Tenant struct {
	Node  string `json:"Node"`
	UID   string `json:"UID"`
	Boot  string `json:"Boot"`
	Epoch int64  `json:"Epoch"`
}

// Record is the value of a subnet key. flannel ignores the field Tenure.
type Record struct {
	PublicIP      netip.Addr   `json:"PublicIP"`
	PublicIPv6    *netip.Addr  `json:"PublicIPv6"`
	BackendType   string       `json:"BackendType"`
	BackendData   *BackendData `json:"BackendData,omitempty"`
	BackendV6Data *BackendData `json:"BackendV6Data,omitempty"`
	Tenure        *Tenant      `json:"Tenure,omitempty"`
}

// Addresses are those that the record announces, IPv4 first; none where it has
// none or cannot be read. Of them the first is the machine's: by it a node tells
// its own record of before from a clone's.
func (r Record) Addresses() []netip.Addr {
	var all []netip.Addr
	for _, a := range []*netip.Addr{&r.PublicIP, r.PublicIPv6} {
		if a != nil && a.IsValid() && !a.IsUnspecified() {
			all = append(all, *a)
		}
	}
	return all
}

// Address is the first of Addresses, the zero Addr where there is none.
func (r Record) Address() netip.Addr {
	if all := r.Addresses(); len(all) > 0 {
		return all[0]
	}
	return netip.Addr{}
}

// Tenant returns whose record it is; the zero Tenant for flannel's.
func (r Record) Tenant() Tenant {
	if r.Tenure == nil {
		return Tenant{}
	}
	return *r.Tenure
}

func (r Record) encode() string { return encode(r) }

// encode is a value as etcd stores it. Everything that is written marshals:
// addresses and MACs by MarshalText, which cannot fail, times of this age, plain
// numbers and strings.
func encode(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	return string(b)
}

// same reports whether two records publish the same, byte for byte as etcd
// would store them.
func (r Record) same(o Record) bool { return r.encode() == o.encode() }

// DecodeRecord reads the value of a subnet key, flannel's or Tenure's. Fields
// it does not know are ignored, as flannel's would be by flannel.
func DecodeRecord(b []byte) (Record, error) {
	var r Record
	if err := json.Unmarshal(b, &r); err != nil {
		return Record{}, fmt.Errorf("decode record: %w", err)
	}
	if err := r.check(); err != nil {
		return Record{}, fmt.Errorf("decode record: %w", err)
	}
	return r, nil
}

// nameMost is the longest name in a record, in bytes; it stands in texts and on
// every node's status. The longest name of a host is as long.
const nameMost = 253

// check says what no node would have written.
func (r Record) check() error {
	named := false
	for _, a := range []*netip.Addr{&r.PublicIP, r.PublicIPv6} {
		switch {
		case a == nil || !a.IsValid() || a.IsUnspecified(): // flannel's way to say that it has none
		case a.IsMulticast() || a.IsLoopback() || a.Zone() != "":
			return fmt.Errorf("%s is the address of no other machine", a)
		default:
			named = true
		}
	}
	if !named {
		return errors.New("no PublicIP")
	}
	for _, d := range []*BackendData{r.BackendData, r.BackendV6Data} {
		if d != nil && d.VtepMAC[0]&1 != 0 {
			return fmt.Errorf("VtepMAC %s is that of a group", d.VtepMAC)
		}
	}
	who := r.Tenant()
	for _, f := range []struct{ name, text string }{{"BackendType", r.BackendType}, {"Node", who.Node}, {"UID", who.UID}, {"Boot", who.Boot}} {
		if len(f.text) > nameMost {
			return fmt.Errorf("%s is %d bytes long, %d is the most", f.name, len(f.text), nameMost)
		}
	}
	return nil
}

// Transition is one change of ownership.
type Transition struct {
	UID   string    `json:"UID"`
	Node  string    `json:"Node"`
	Epoch int64     `json:"Epoch"`
	Since time.Time `json:"Since"`
	Until time.Time `json:"Until,omitzero"`
	Why   string    `json:"Why"`
}

// keptTransitions is how many past owners an Owner remembers.
const keptTransitions = 8

// Owner is the value of an owner key: who owns the subnet, or owned it last.
// It hangs on no lease and survives the record.
type Owner struct {
	Transition
	History []Transition `json:"History,omitempty"`
}

// succeed is the owner record after the subnet went to next. The same owner
// taking it again is a transition of its own only if the epoch changed.
func (o Owner) succeed(next Transition) Owner {
	if o.UID == next.UID && o.Epoch == next.Epoch {
		next.Since = o.Since
		return Owner{Transition: next, History: o.History}
	}
	history := o.History
	if o.UID != "" {
		history = append(append([]Transition(nil), o.History...), o.Transition)
	}
	if n := len(history) - keptTransitions; n > 0 {
		history = history[n:]
	}
	return Owner{Transition: next, History: history}
}

// Reservation is the value of a reservation key.
type Reservation struct {
	Node string `json:"Node"`
}

// Store is the value of the store key: which store this is.
type Store struct {
	ID   string    `json:"ID"`
	Born time.Time `json:"Born"`
}

// Settle is the value of the settle key: who saw the store forget, and what.
// That the key is present is all that counts.
type Settle struct {
	Node  string    `json:"Node"`
	Since time.Time `json:"Since"`
	Why   string    `json:"Why"`
}

func decode[T any](what string, b []byte) (T, error) {
	var v T
	if err := json.NewDecoder(bytes.NewReader(b)).Decode(&v); err != nil {
		return v, fmt.Errorf("decode %s: %w", what, err)
	}
	return v, nil
}
