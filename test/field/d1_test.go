package field

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
)

// tinySubnets has nodes with 13 pod addresses each, littleSubnets with 5.
const (
	tinySubnets   = `{"Network":"10.5.0.0/16","SubnetLen":28}`
	littleSubnets = `{"Network":"10.5.0.0/16","SubnetLen":29}`
)

// TestD1 is plugins #697 and #252, cni #204 and k3s #5885: after reboots the
// addresses of dead pods stay reserved, until the range is empty. Right is: a
// node with nearly all of its addresses in use reboots, by a new boot with all
// namespaces and links gone and every file kept, the ledger's too; then as many
// pods are added again, boot after boot, and at the end all that there are.
func TestD1(t *testing.T) {
	const total, most = 13, 11
	reboots := 2
	if cluster.Long(t) {
		reboots = 20
	}
	ctx := cluster.Context(t, 5*time.Minute)
	c := cluster.Born(ctx, t, tinySubnets, "n1")
	n := c.Nodes[0]
	cluster.Start(ctx, t, n)
	ledger := filepath.Join(n.RunDir, "ledger.json")
	for boot := range reboots {
		h := &handedOut{all: map[netip.Addr]string{}}
		several(t, most, func(i int) { h.add(ctx, t, n, fmt.Sprintf("b%d-%d", boot, i), "") })
		used(ctx, t, n, most)
		n.Kill()
		kept, err := os.ReadFile(ledger)
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Reboot(ctx); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(ledger, kept, 0o600); err != nil {
			t.Fatal(err)
		}
		cluster.Start(ctx, t, n)
		used(ctx, t, n, 0)
	}
	h := &handedOut{all: map[netip.Addr]string{}}
	several(t, total, func(i int) { h.add(ctx, t, n, fmt.Sprint("last", i), "") })
	box := cluster.Sandbox(ctx, t, n, "more")
	if a := cluster.Call(ctx, t, n, cluster.CallFor("ADD", box, "eth0")); cluster.Code(a) != api.CodeNoAddress {
		t.Errorf("ADD on a full subnet: %v, want code %d", a.Err, api.CodeNoAddress)
	}
}
