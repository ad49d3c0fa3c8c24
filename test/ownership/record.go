package ownership

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// tenant is whose a record is. The record of a node that is not Tenure's has a
// zero UID and Node, as has nobody's.
type tenant struct {
	Node  string
	UID   string
	Boot  string
	Epoch int64
}

// record is the part of a subnet key's value that says who may use the subnet.
type record struct {
	PublicIP string
	Tenure   *tenant
}

func (r record) tenant() tenant {
	if r.Tenure == nil {
		return tenant{}
	}
	return *r.Tenure
}

// tomb says that the subnet was taken away by force, and is nobody's.
func (r record) tomb() bool { return r.Tenure != nil && r.Tenure.UID == "" }

func (r record) String() string {
	switch {
	case r.Tenure == nil:
		return "the record of " + r.PublicIP + ", which is not Tenure's,"
	case r.tomb():
		return fmt.Sprintf("the tombstone of %s, epoch %d,", r.Tenure.Node, r.Tenure.Epoch)
	}
	return fmt.Sprintf("%s (UID %s, epoch %d)", r.Tenure.Node, r.Tenure.UID, r.Tenure.Epoch)
}

func decodeRecord(value string) (record, error) {
	var r record
	if err := json.Unmarshal([]byte(value), &r); err != nil {
		return record{}, fmt.Errorf("decode record: %w", err)
	}
	return r, nil
}

// ownerRecord is the part of an owner key's value that is judged.
type ownerRecord struct {
	UID   string
	Epoch int64
	Until time.Time
}

func decodeOwner(value string) (o ownerRecord, _ error) {
	if err := json.Unmarshal([]byte(value), &o); err != nil {
		return ownerRecord{}, fmt.Errorf("decode owner: %w", err)
	}
	return o, nil
}

// defaultTTL is what a config without LeaseTTL means.
const defaultTTL = 24 * time.Hour

// ttlIn is the LeaseTTL of a network config, 0 if it is not one.
func ttlIn(config string) time.Duration {
	var c struct{ LeaseTTL string }
	if json.Unmarshal([]byte(config), &c) != nil {
		return 0
	}
	if c.LeaseTTL == "" {
		return defaultTTL
	}
	d, err := time.ParseDuration(c.LeaseTTL)
	if err != nil {
		return 0
	}
	return d
}

// margin is by how much a deadline must lie before the end of a lease.
func margin(ttl time.Duration) time.Duration {
	return max(time.Second, min(ttl/10, 300*time.Second))
}

// names are the keys below a prefix.
type names string

func namesIn(prefix string) names { return names(strings.TrimSuffix(prefix, "/") + "/") }

func (n names) config() string { return string(n) + "config" }
func (n names) settle() string { return string(n) + "tenure/settle" }

// subnet is the last part of a subnet's key.
func (n names) subnet(key string) (name string, ok bool) {
	return strings.CutPrefix(key, string(n)+"subnets/")
}

func (n names) owner(s subnets) string       { return string(n) + "tenure/owners/" + s.first() }
func (n names) reservation(s subnets) string { return string(n) + "tenure/reservations/" + s.first() }

// subnets is what a key names, one prefix of each family at most.
type subnets []netip.Prefix

func parseSubnets(name string) (subnets, error) {
	var s subnets
	for part := range strings.SplitSeq(name, "&") {
		p, err := netip.ParsePrefix(strings.Replace(part, "-", "/", 1))
		if err != nil {
			return nil, fmt.Errorf("subnet key %q: %w", name, err)
		}
		if p.Bits() > 0 { // 0.0.0.0-0 stands for an absent IPv4 subnet
			s = append(s, p.Masked())
		}
	}
	if len(s) == 0 {
		return nil, fmt.Errorf("subnet key %q names no subnet", name)
	}
	return s, nil
}

// first names the owner's and the reservation's key.
func (s subnets) first() string {
	return fmt.Sprintf("%s-%d", s[0].Addr(), s[0].Bits())
}

func (s subnets) overlaps(o subnets) bool {
	for _, p := range s {
		for _, q := range o {
			if p.Overlaps(q) {
				return true
			}
		}
	}
	return false
}

func (s subnets) String() string {
	text := make([]string, len(s))
	for i, p := range s {
		text[i] = p.String()
	}
	return strings.Join(text, " & ")
}

// single is the subnet of one address, or the prefix if it is known.
func single(p netip.Prefix, a netip.Addr) subnets {
	if p.IsValid() {
		return subnets{p}
	}
	return subnets{netip.PrefixFrom(a, a.BitLen())}
}
