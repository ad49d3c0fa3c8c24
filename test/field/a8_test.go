package field

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// badConfigs are network configs and the field that each is wrong in.
func badConfigs() map[string]string {
	const backend = `{"Network":"10.5.0.0/16","Backend":{%s}}`
	return map[string]string{
		`{"Network":"10.5.0.0/16","SubnetMin":"10.5.3.7"}`:                         "SubnetMin",
		`{"Network":"10.5.0.0/16","SubnetMax":"10.5.3.128"}`:                       "SubnetMax",
		`{"Network":"10.5.0.0/16","SubnetMin":"10.6.0.0"}`:                         "SubnetMin",
		`{"Network":"10.5.0.0/16","SubnetMin":"10.5.9.0","SubnetMax":"10.5.8.0"}`:  "SubnetMin",
		`{"Network":"10.5.0.0/31"}`:                                                "Network",
		`{"Network":"10.5.3.1/16"}`:                                                "Network",
		`{"Network":"127.0.0.0/16"}`:                                               "Network",
		`{"Network":17}`:                                                           "Network",
		`{}`:                                                                       "Network",
		`{"Network":"10.5.0.0/26","SubnetLen":24}`:                                 "SubnetLen",
		`{"Network":"10.5.0.0/16","SubnetLen":31}`:                                 "SubnetLen",
		`{"Network":"10.5.0.0/16","SubnetLen":"24"}`:                               "SubnetLen",
		`{"Network":"10.5.0.0/16","LeaseTTL":"4s"}`:                                "LeaseTTL",
		`{"Network":"10.5.0.0/16","LeaseTTL":"a day"}`:                             "LeaseTTL",
		`{"Network":"10.5.0.0/16","LeaseTTL":86400}`:                               "LeaseTTL",
		`{"Network":"10.5.0.0/16","LeaseTTL":"200000000h"}`:                        "LeaseTTL",
		fmt.Sprintf(backend, `"VNI":0`):                                            "Backend.VNI",
		fmt.Sprintf(backend, `"VNI":16777216`):                                     "Backend.VNI",
		fmt.Sprintf(backend, `"VNI":"1"`):                                          "Backend.VNI",
		fmt.Sprintf(backend, `"Port":65536`):                                       "Backend.Port",
		fmt.Sprintf(backend, `"MTU":100`):                                          "Backend.MTU",
		fmt.Sprintf(backend, `"Type":"udp"`):                                       "Backend.Type",
		fmt.Sprintf(backend, `"Vni":1,"vNI":2`):                                    "Backend.VNI",
		fmt.Sprintf(backend, `"DirectRouting":1`):                                  "Backend.DirectRouting",
		`{"Network":"10.5.0.0/16","SubnetLenght":24}`:                              "SubnetLenght",
		`{"Network":"10.5.0.0/16","Network":"10.6.0.0/16"}`:                        "Network",
		`{"Network":"10.5.0.0/16","EnableIPv6":true}`:                              "IPv6Network",
		`{"Network":"10.5.0.0/16","EnableIPv4":false}`:                             "EnableIPv4",
		`{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::1/48"}`: "IPv6Network",
		`{"Network":"10.5.0.0/16"`:                                                 "document",
		`[]`:                                                                       "document",
	}
}

// TestA8 is flannel #430 and #435: a network config with a first subnet off the
// boundary, or a network no larger than one subnet, is taken, and fails later
// as an odd pod address or as "out of subnets". Right is: whoever is given one
// names the field, before anything is written to etcd or to a kernel.
func TestA8(t *testing.T) {
	t.Parallel()
	ctx := cluster.Context(t, 90*time.Second)
	c := cluster.Born(ctx, t, cluster.Network, "n1")
	n1 := c.Nodes[0]
	store, etcd := c.Store(t), "--etcd-endpoints="+c.Etcd.URL()
	const unborn = "--etcd-prefix=/unborn"
	revision, kernel := storeRevision(ctx, t, store), bare(ctx, t, n1)
	for config, field := range badConfigs() {
		for name, argv := range map[string][]string{
			"init":                     {"tenurectl", "init", "--network-config=" + config, etcd, unborn},
			"init of a born cluster":   {"tenurectl", "init", "--network-config=" + config, etcd},
			"config set":               {"tenurectl", "config", "set", config, "--yes", etcd},
			"tenured --network-config": {"tenured", "--new-cluster", "--network-config=" + config, etcd, unborn, "--iface=eth0", "--run-dir=" + n1.RunDir, "--state-dir=" + n1.StateDir, "--metrics-listen="},
		} {
			r := cluster.Run(ctx, t, n1, argv[0], argv[1:]...)
			if r.Code != 2 || !strings.Contains(r.Said, field+":") {
				t.Errorf("%s %s: want exit code 2 and %s named: %s", name, config, field, r)
			}
		}
	}
	if now := storeRevision(ctx, t, store); now != revision {
		t.Errorf("etcd was written to: revision %d, it was %d", now, revision)
	}
	if now := bare(ctx, t, n1); now != kernel {
		t.Errorf("the kernel is\n%s\nit was\n%s", now, kernel)
	}
}

// TestA8ByHand: the same configs put into etcd by hand reach a node that runs,
// which goes on with its last good one, also over restarts, and one that has
// begun, which waits; both name the field, and both go on by themselves when
// the config is good again.
func TestA8ByHand(t *testing.T) {
	t.Parallel()
	ctx := cluster.Context(t, 90*time.Second)
	c := cluster.New(ctx, t, cluster.Network, "n1", "n2")
	ring := cluster.NewRing(ctx, t, c.Nodes...)
	fresh := c.AddNode(ctx, t, "n3")
	store := c.Store(t)
	untouched := bare(ctx, t, fresh)
	n1 := c.Nodes[0]
	started := false
	for config, field := range badConfigs() {
		store.Configure(ctx, config)
		if !started {
			if err := fresh.Start(ctx); err != nil {
				t.Fatal(err)
			}
			started = true
		}
		s := cluster.Wait(ctx, t, n1, "refuses "+config, func(s *api.Status) bool { return refusal(s, field+":") == nil })
		if s.State != api.StateHeld || !s.Ready || s.Network != cluster.PodNetwork || s.Subnet != ring.Before[0].Subnet {
			t.Errorf("%s: n1 is %s, ready %t, with %s of %s", config, s.State, s.Ready, s.Subnet, s.Network)
		}
		cluster.Wait(ctx, t, fresh, "waits because of "+config, func(s *api.Status) bool {
			return s.State == api.StateWaiting && refusal(s, field+":") == nil && strings.Contains(s.Reason, field+":")
		})
	}
	if err := n1.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	cluster.Start(ctx, t, n1)
	if s := cluster.Status(ctx, t, n1); s.Network != cluster.PodNetwork {
		t.Errorf("after a restart n1 is in %s", s.Network)
	}
	if now := bare(ctx, t, fresh); now != untouched {
		t.Errorf("the kernel of n3 is\n%s\nit was\n%s", now, untouched)
	}
	ring.Untouched(ctx, t)

	store.Configure(ctx, cluster.Network)
	cluster.WaitState(ctx, t, fresh, api.StateHeld)
	cluster.Wait(ctx, t, n1, "is well", func(s *api.Status) bool { return len(s.Problems) == 0 })
	ring.Whole(ctx, t)
}

// bare is what a node's kernel has where Tenure has made nothing yet: links,
// addresses, routes and rules.
func bare(ctx context.Context, t *testing.T, n *lab.Node) string {
	t.Helper()
	return cluster.Exec(ctx, t, n, "sh", "-ec", "ip -o link; ip -4 addr; ip -4 route show table all; iptables-save | grep -v '^[#:]' || :")
}

// storeRevision is etcd's own: any write raises it.
func storeRevision(ctx context.Context, t *testing.T, store *cluster.Store) int64 {
	t.Helper()
	resp, err := store.Get(ctx, "/", clientv3.WithCountOnly())
	if err != nil {
		t.Fatal(err)
	}
	return resp.Header.Revision
}
