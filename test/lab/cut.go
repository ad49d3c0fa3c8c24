package lab

import (
	"context"
	"fmt"
)

// Cut is a way to part a node from others.
type Cut int

const (
	// CutCable takes the node's link down: it sees that its carrier is gone.
	CutCable Cut = iota
	// CutLAN lets the link be but carries nothing: a failed switch.
	CutLAN
	// CutEtcd drops TCP to and from port 2379 inside the node and leaves all
	// other traffic alone.
	CutEtcd
)

// Partition cuts the node (on) or heals that same cut (off). Cutting twice, or
// healing what is whole, is an error for CutEtcd only.
func (n *Node) Partition(ctx context.Context, how Cut, on bool) error {
	err := n.partition(ctx, how, on)
	if err != nil {
		return fmt.Errorf("partition %s: %w", n.Host, err)
	}
	n.lab.logf("node %s: %s", n.Host, how.word(on))
	return nil
}

func (n *Node) partition(ctx context.Context, how Cut, on bool) error {
	switch how {
	case CutCable:
		return n.lab.LAN.ip(ctx, "link set "+n.port()+pick(on, " down", " up"))
	case CutLAN:
		return n.lab.LAN.ip(ctx, "link set "+n.port()+pick(on, " nomaster", " master lan0"))
	case CutEtcd:
		for _, rule := range [][]string{{"OUTPUT", "--dport"}, {"INPUT", "--sport"}} {
			if _, err := n.Exec(ctx, "iptables", "-w", "-t", "mangle", pick(on, "-I", "-D"), rule[0],
				"-p", "tcp", rule[1], "2379", "-j", "DROP"); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("unknown cut %d", how)
}

func (c Cut) word(on bool) string {
	what := map[Cut]string{CutCable: "cable", CutLAN: "LAN", CutEtcd: "etcd"}[c]
	return pick(on, "cut from "+what, "back on "+what)
}

func pick(on bool, yes, no string) string {
	if on {
		return yes
	}
	return no
}
