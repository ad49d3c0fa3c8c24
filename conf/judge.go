package conf

import "net/netip"

// Named is a prefix that somebody else uses on this node, and a word for it,
// such as "interface eth0" or "etcd endpoint http://192.0.2.5:2379".
type Named struct {
	Prefix netip.Prefix
	What   string
}

// Overlaps names every taken prefix that n's networks cover or lie in: with
// such a network config, routes to the pods would cut off the underlay, etcd
// or a bridge. It is empty if there is none.
func Overlaps(n Network, taken []Named) Faults {
	var faults Faults
	for _, own := range []struct {
		field  string
		prefix netip.Prefix
	}{{"Network", n.Network}, {"IPv6Network", n.IPv6Network}} {
		for _, t := range taken {
			if own.prefix.IsValid() && own.prefix.Overlaps(t.Prefix) {
				faults.add(own.field, "%s overlaps %s of %s", own.prefix, t.Prefix, t.What)
			}
		}
	}
	return faults
}

// Judge names every reason why a node that holds the subnets held, of one
// family or a pair, cannot go on under n: such a config would orphan them. A
// moved SubnetMin or SubnetMax is none, it steers acquiring only. It is empty
// if nothing is held.
func Judge(n Network, held []netip.Prefix) Faults {
	var faults Faults
	var four, six bool
	for _, p := range held {
		if p.Addr().Is4() {
			four = true
			judgeOne(&faults, "", n.Network, n.SubnetLen, n.EnableIPv4, p)
		} else {
			six = true
			judgeOne(&faults, "IPv6", n.IPv6Network, n.IPv6SubnetLen, n.EnableIPv6, p)
		}
	}
	if six && !four && n.EnableIPv4 {
		faults.add("EnableIPv4", "cannot be turned on while a subnet without IPv4 is held")
	}
	if four && !six && n.EnableIPv6 {
		faults.add("EnableIPv6", "cannot be turned on while a subnet without IPv6 is held")
	}
	return faults
}

func judgeOne(faults *Faults, family string, network netip.Prefix, length int, enabled bool, held netip.Prefix) {
	switch {
	case !enabled:
		field := "EnableIPv4"
		if family != "" {
			field = "EnableIPv6"
		}
		faults.add(field, "cannot be turned off while subnet %s is held", held)
	case length != held.Bits():
		faults.add(family+"SubnetLen", "/%d differs from the held subnet %s", length, held)
	case !network.Contains(held.Addr()):
		faults.add(family+"Network", "%s does not contain the held subnet %s", network, held)
	}
}
