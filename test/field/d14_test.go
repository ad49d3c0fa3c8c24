package field

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestD14 is amazon-vpc-cni #1127: which addresses are cooling is known to the
// daemon's memory alone, and right after a restart the next pod is given what
// the last one has just left. Right is: freed addresses, the next ones in turn,
// are passed over by the next daemon too while any other is free; when none is,
// the one that has cooled the longest is given, and that is logged.
func TestD14(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.New(ctx, t, littleSubnets, "n1")
	n := c.Nodes[0]
	subnet := netip.MustParsePrefix(cluster.Status(ctx, t, n).Subnet)
	at := func(i int) string { // .2 to .6 are given to pods
		a := subnet.Addr()
		for range i {
			a = a.Next()
		}
		return a.String()
	}
	add := func(name, want, args string) *lab.Pod {
		t.Helper()
		p := cluster.Pod(ctx, t, n, name, lab.PodOptions{Args: args})
		if p.IP.String() != want {
			t.Errorf("%s has %s, want %s", name, p.IP, want)
		}
		return p
	}
	add("first", at(2), "")
	for _, i := range []int{5, 3} { // .5 is the oldest
		if err := add(fmt.Sprint("named", i), at(i), "IP="+at(i)).Del(ctx); err != nil {
			t.Fatal(err)
		}
	}
	n.Kill()
	cluster.Start(ctx, t, n)
	add("second", at(4), "") // .3 would be next
	add("third", at(6), "")
	const early = "gave an address before its cool-down was over"
	if strings.Contains(n.Logs(1000), early) {
		t.Error("a cooling address was given while others were free")
	}
	add("fourth", at(5), "")
	add("fifth", at(3), "")
	if !strings.Contains(n.Logs(1000), early) { // once a minute, with a count
		t.Error("no word in the log of addresses that were given early")
	}
}
