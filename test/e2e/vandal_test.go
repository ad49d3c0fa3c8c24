package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// Vandalism goes on for this long; what it did has to be undone within
// vandalRepair, twice what is promised since the machine of the tests is shared.
const (
	vandalTime     = 20 * time.Second
	vandalTimeLong = 60 * time.Second
	vandalRepair   = 10 * time.Second
)

// TestVandal damages at random what the daemon has in the kernel, now one
// thing, now several at once, beside things of others that look alike. Each
// time all is as it was, of ours and of theirs, some seconds later; and at the
// end nothing more is written, and packets pass.
func TestVandal(t *testing.T) {
	ctx := cluster.Context(t, 4*time.Minute)
	c := cluster.Born(ctx, t, cluster.Network, "n1", "n2")
	store := c.Store(t)
	for i := range 4 {
		store.Publish(ctx, cluster.FakePeer(i))
	}
	n1, n2 := c.Nodes[0], c.Nodes[1]
	cluster.Start(ctx, t, n1, n2)
	cluster.WaitPeers(ctx, t, n1, n2)
	near, next, far := cluster.Pod(ctx, t, n1, "near"), cluster.Pod(ctx, t, n1, "next"), cluster.Pod(ctx, t, n2, "far")
	cluster.Exec(ctx, t, n1, "sh", "-ec", ofOthers)
	v := &vandal{n1, rand.New(rand.NewPCG(cluster.Seed(t), 0)), ""}
	cluster.Eventually(ctx, t, vandalRepair, "all peers", func() error {
		if p, err := cluster.KernelPeers(ctx, n1); err != nil || len(p.Routes) != 5 || len(p.FDB) != 5 {
			return fmt.Errorf("%+v, %w", p, err)
		}
		return lab.Ping(ctx, near, far.IP)
	})
	v.whole = v.look(ctx, t)

	d := vandalTime
	if cluster.Long(t) {
		d = vandalTimeLong
	}
	var worst time.Duration
	rounds := 0
	for start := time.Now(); time.Since(start) < d; rounds++ {
		var deeds []string
		for range 1 + v.rand.IntN(4) {
			deeds = append(deeds, v.deed())
		}
		// One deed may have taken away what the next one is aimed at.
		cluster.Exec(ctx, t, n1, "sh", "-c", strings.Join(deeds, "\n")+"\ntrue")
		done := time.Now()
		v.undone(ctx, t, deeds)
		worst = max(worst, time.Since(done))
	}
	t.Logf("%d rounds, the longest repair took %s", rounds, worst)
	writes := cluster.WritingPasses(n1)
	cluster.Stays(ctx, t, 6*time.Second, "nothing more is written", func() error {
		if now := cluster.WritingPasses(n1); now != writes {
			return fmt.Errorf("%d more passes wrote:\n%s", now-writes, n1.Logs(5))
		}
		return nil
	})
	if err := errors.Join(lab.WaitPing(ctx, near, next.IP), lab.WaitPing(ctx, near, far.IP), lab.WaitPing(ctx, far, next.IP)); err != nil {
		t.Error(err)
	}
}

// ofOthers makes things that are not Tenure's: they stand among its own where
// the vandal does not itself destroy them.
const ofOthers = `
ip link add others0 address 02:00:00:00:77:01 type veth peer name others1
ip addr add 198.51.100.77/24 dev others0
ip link set others0 up; ip link set others1 up
ip link add others.1 type vxlan id 1 dstport 4789 nolearning local 198.51.100.77 dev others0
ip link set others.1 address 02:00:00:00:77:02 up
bridge fdb add 02:00:00:00:77:03 dev others.1 dst 198.51.100.78
ip neigh add 198.51.100.79 lladdr 02:00:00:00:77:04 dev others0 nud permanent
ip route add 10.5.195.0/24 via 198.51.100.79 dev others0 proto static
ip route add 10.9.0.0/16 via 198.51.100.79 dev others0 proto 90
ip route add unreachable 10.10.0.0/16 proto static
iptables -w -t mangle -N OTHERS
iptables -w -t mangle -A FORWARD -s 10.5.0.0/16 -j OTHERS
iptables -w -t mangle -A OTHERS -m comment --comment TENURE-MASQ -j RETURN
`

// vandal damages one node.
type vandal struct {
	node  *lab.Node
	rand  *rand.Rand
	whole string
}

// deed returns one line of the shell. 0N stands for the number of a peer, MAC
// for some MAC, PORT for the host end of some pod.
func (v *vandal) deed() string {
	all := vandalism()
	line := all[v.rand.IntN(len(all))]
	chain := [][2]string{{"nat", "TENURE-MASQ"}, {"filter", "TENURE-FWD"}, {"raw", "TENURE-RAW"}}[v.rand.IntN(3)]
	return strings.NewReplacer(
		"FLUSH", chain[0]+" -F "+chain[1], "DELETE", chain[0]+" -D "+chain[1], "INSERT", chain[0]+" -I "+chain[1],
		"IPT", "iptables -w",
		"0N", fmt.Sprint("0", v.rand.IntN(4)),
		"MAC", fmt.Sprintf("02:00:00:00:99:%02x", v.rand.IntN(256)),
		"PORT", fmt.Sprintf(`$(ls /sys/class/net | grep ^ten.............$ | sed -n %dp)`, 1+v.rand.IntN(2)),
	).Replace(line)
}

func vandalism() []string {
	return []string{
		"ip link set tenure.1 down",
		"ip link set tenure.1 down; ip link set tenure.1 up",
		"ip link set tenure0 down",
		"ip link del tenure.1",
		"ip link del tenure0",
		"ip link set tenure.1 address MAC",
		"ip link set tenure0 address MAC",
		"ip link set tenure.1 mtu 1300",
		"ip link set tenure0 mtu 1280",
		"ip link set tenure.1 arp off",
		"ip link set tenure0 promisc on",
		"ip link set tenure.1 protodown on",
		"ip link set tenure.1 type vxlan ttl 3",
		"ip link set tenure.1 type vxlan learning",
		"ip link set tenure0 type bridge stp_state 1",
		"ip link set PORT nomaster",
		"ip link set PORT down",
		"ip link set PORT type bridge_slave hairpin off",
		"ip link set PORT type bridge_slave isolated on",
		"bridge link set dev PORT learning off flood off",
		"bridge link set dev PORT state 0",
		"ip link set tenure.1 down; ip link set tenure.1 name moved0",
		"ip link del tenure.1; ip link add tenure.1 type vxlan id 5 dstport 4789",
		"ip addr flush dev tenure0",
		"ip addr flush dev tenure.1",
		"ip addr add 10.5.196.1/24 dev tenure0",
		"ip route flush dev tenure0",
		"ip route flush dev tenure.1",
		"ip route flush proto kernel dev tenure0",
		"ip route del 10.5.20N.0/24",
		"ip route replace 10.5.20N.0/24 dev tenure.1 proto 90",
		"ip route replace 10.5.20N.0/24 via 10.5.20N.0 dev tenure.1 onlink proto 90 mtu 600",
		"ip route replace unreachable 10.5.20N.0/24 proto 90",
		"ip route add 10.5.190.0/24 via 10.5.200.0 dev tenure.1 onlink proto 90",
		"ip route del unreachable 10.5.0.0/16 metric 4278198272",
		"ip neigh flush dev tenure.1 nud permanent",
		"ip neigh del 10.5.20N.0 dev tenure.1",
		"ip neigh replace 10.5.20N.0 lladdr MAC dev tenure.1 nud permanent",
		"bridge fdb del 02:00:00:00:00:0N dev tenure.1",
		"bridge fdb replace 02:00:00:00:00:0N dev tenure.1 dst 192.0.2.77",
		"bridge fdb replace 02:00:00:00:00:0N dev tenure.1 dst 192.0.2.10N port 4789",
		"bridge fdb append 00:00:00:00:00:00 dev tenure.1 dst 192.0.2.77; bridge fdb append 00:00:00:00:00:00 dev tenure.1 dst 192.0.2.78",
		"echo 0 > /proc/sys/net/ipv4/ip_forward",
		"echo 0 > /proc/sys/net/ipv4/conf/tenure0/forwarding",
		"echo 0 > /proc/sys/net/ipv4/conf/tenure.1/forwarding",
		"IPT -t nat -F; IPT -t nat -X",
		"IPT -t filter -F; IPT -t filter -X",
		"IPT -t raw -F; IPT -t raw -X",
		"IPT -t FLUSH",
		"IPT -t DELETE 1",
		"IPT -t INSERT -s 10.5.0.0/16 -j ACCEPT",
		"IPT -D FORWARD 1",
		"IPT -A FORWARD -j TENURE-FWD",
		"tc qdisc del dev tenure.1 clsact",
		"tc filter del dev tenure.1 ingress",
		"tc filter del dev tenure.1 egress",
	}
}

// undone waits until the node is as it was.
func (v *vandal) undone(ctx context.Context, t *testing.T, deeds []string) {
	t.Helper()
	now := ""
	ctx, cancel := context.WithTimeout(ctx, vandalRepair)
	defer cancel()
	if err := lab.Eventually(ctx, "undone", func() error {
		seen := v.look(ctx, t)
		if ctx.Err() == nil { // else it was cut off
			now = seen
		}
		if now != v.whole {
			return errors.New("not as it was")
		}
		return nil
	}); err != nil {
		t.Fatalf("after\n%s\n%v (-was +is):\n%s\n%s", strings.Join(deeds, "\n"), err,
			cmp.Diff(strings.Split(v.whole, "\n"), strings.Split(now, "\n")), v.node.Logs(10))
	}
}

// look is all of the node's network that anybody can change, without numbers
// that change when a device is made anew.
func (v *vandal) look(ctx context.Context, t *testing.T) string {
	t.Helper()
	out, err := v.node.Exec(ctx, "sh", "-c", `
ip -j -d link; echo
ip -4 -o addr | sed 's,^[0-9]*: ,,' | sort
ip -4 route show table main | sort
ip -4 route show table local dev tenure0 | sort
ip -4 route show table local dev tenure.1 | sort
ip -4 neigh show nud permanent | sort
bridge fdb show dev tenure.1 | sort
bridge fdb show dev others.1 | sort
iptables-save
cat /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv4/conf/tenure0/forwarding /proc/sys/net/ipv4/conf/tenure.1/forwarding /proc/sys/net/ipv4/conf/eth0/forwarding
echo ingress; tc filter show dev tenure.1 ingress; echo egress; tc filter show dev tenure.1 egress`)
	if err != nil && ctx.Err() == nil {
		out += err.Error() // something is missing
	}
	links, rest, _ := strings.Cut(out, "\n")
	rest = regexp.MustCompile(`(?m)^#.*\n|^\d+: | \[\d+:\d+\]| id \d+| tag \w+| jited| not_in_hw`).ReplaceAllString(rest, "")
	return strings.Join(linksOf(links), "\n") + "\n" + rest
}

// linksOf prints of each link what is not its number, a timer or a counter.
func linksOf(text string) []string {
	var links []map[string]any
	if err := json.Unmarshal([]byte(text), &links); err != nil {
		return []string{err.Error(), text}
	}
	var out []string
	for _, l := range links {
		line := fmt.Sprint(l["ifname"], l["flags"], l["mtu"], l["master"], l["address"], l["protodown"], l["promiscuity"])
		info, _ := l["linkinfo"].(map[string]any)
		data, _ := info["info_data"].(map[string]any)
		port, _ := info["info_slave_data"].(map[string]any)
		switch info["info_kind"] {
		case "vxlan":
			line += fmt.Sprint(data)
		case "bridge":
			line += fmt.Sprint(data["stp_state"], data["vlan_filtering"])
		}
		for _, key := range []string{"state", "hairpin", "isolated", "learning", "flood", "bcast_flood", "mcast_flood", "locked"} {
			line += fmt.Sprint(" ", port[key])
		}
		out = append(out, line)
	}
	slices.Sort(out)
	return out
}
