package field

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// etcdctl does what a command of docs/securing-etcd.md says. The passwords that
// the command would ask for are nodesPassword, and rootPassword for root.
func etcdctl(ctx context.Context, c *clientv3.Client, line string) error {
	f := strings.Fields(line)
	verb, args := strings.Join(f[1:3], " "), f[3:]
	given := func(n int) bool { return len(args) == n }
	var err error
	switch {
	case verb == "role add" && given(1):
		_, err = c.RoleAdd(ctx, args[0])
	case verb == "role grant-permission" && given(4) && args[1] == "--prefix=true" && args[2] == "readwrite":
		_, err = c.RoleGrantPermission(ctx, args[0], args[3], clientv3.GetPrefixRangeEnd(args[3]), clientv3.PermissionType(clientv3.PermReadWrite))
	case verb == "user add" && given(1) && args[0] == "root":
		_, err = c.UserAdd(ctx, args[0], rootPassword)
	case verb == "user add" && given(1):
		_, err = c.UserAdd(ctx, args[0], nodesPassword)
	case verb == "user add" && given(2) && args[1] == "--no-password":
		_, err = c.UserAddWithOptions(ctx, args[0], "", &clientv3.UserAddOptions{NoPassword: true})
	case verb == "user grant-role" && given(2):
		_, err = c.UserGrantRole(ctx, args[0], args[1])
	case verb == "user passwd" && given(1):
		_, err = c.UserChangePassword(ctx, args[0], newPassword)
	case verb == "auth enable" && given(0):
		_, err = c.AuthEnable(ctx)
	default:
		return fmt.Errorf("what does %q do?", line)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", line, err)
	}
	return nil
}

const rootPassword, newPassword = "of the test", "battery staple"

// etcdctlLines are the commands of the page, in order.
func etcdctlLines(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile("../../docs/securing-etcd.md")
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for i, block := range strings.Split(string(b), "```") {
		if rest, ok := strings.CutPrefix(block, "sh\n"); ok && i%2 == 1 {
			lines = append(lines, strings.Split(strings.TrimSpace(rest), "\n")...)
		}
	}
	return lines
}

// untilEnabled are those that set users up, and the rest.
func untilEnabled(t *testing.T) (first, rest []string) {
	t.Helper()
	lines := etcdctlLines(t)
	i := slices.Index(lines, "etcdctl auth enable")
	if i < 0 {
		t.Fatalf("docs/securing-etcd.md enables no users: %q", lines)
	}
	return lines[:i+1], lines[i+1:]
}

// TestSecuringEtcd is docs/securing-etcd.md with its commands: with its role a
// node does all it must, tenurectl too, and nothing outside of the prefix; how
// the members are asks for no right, and no call is repeated that is refused; a
// password that is changed needs no restart.
func TestSecuringEtcd(t *testing.T) {
	t.Parallel()
	ctx := cluster.Context(t, 90*time.Second)
	u := usersIn(ctx, t, `{"Network":"10.5.0.0/16","SubnetMax":"10.5.189.0","LeaseTTL":"15s"}`, "300", "n1", "n2")
	n1, n2 := u.Nodes[0], u.Nodes[1]
	u.start(ctx, n1)
	u.start(ctx, n2)
	for _, n := range u.Nodes {
		s := cluster.Wait(ctx, t, n, "holds, and knows the members", func(s *api.Status) bool {
			return s.State == api.StateHeld && len(s.Problems) == 0 && s.Etcd.Endpoints[2].Healthy
		})
		if s.Etcd.Endpoints[0].Version == "" {
			t.Errorf("%s does not know the version of etcd: %+v", n.Host, s.Etcd.Endpoints)
		}
	}
	u.verbs(ctx, n1)
	u.outside(ctx)
	u.dead(ctx, n1, n2)

	_, rest := untilEnabled(t)
	for _, line := range rest {
		if err := etcdctl(ctx, u.root, line); err != nil {
			t.Fatal(err)
		}
	}
	cluster.Wait(ctx, t, n1, "says that its password is refused", func(s *api.Status) bool {
		return strings.Contains(problem(s, "etcd-refuses").Text, u.password)
	})
	u.write(newPassword)
	cluster.Wait(ctx, t, n1, "has the new password", func(s *api.Status) bool { return s.State == api.StateHeld && len(s.Problems) == 0 })
}

// verbs are those of tenurectl, and what they make the nodes do: a lease of
// another length is a rebind, and --after-loss a settle.
func (u *withUsers) verbs(ctx context.Context, n *lab.Node) {
	u.t.Helper()
	for _, verb := range []string{
		"leases", "map", "history", "config get -o wide",
		`config set {"Network":"10.5.0.0/16","LeaseTTL":"12s"} --yes`, "reserve 10.5.250.0/24 n7", "unreserve 10.5.250.0/24",
	} {
		u.ctl(ctx, n, strings.Fields(verb)...)
	}
	for _, n := range u.Nodes {
		cluster.Wait(ctx, u.t, n, "has moved to a lease of the new length", func(s *api.Status) bool {
			return s.State == api.StateHeld && s.Lease.TTLSeconds == 12 && len(s.Problems) == 0
		})
	}
	u.ctl(ctx, n, "init", "--after-loss", "--settle=5s", `--network-config={"Network":"10.5.0.0/16","LeaseTTL":"12s"}`)
	cluster.Wait(ctx, u.t, n, "has settled", func(s *api.Status) bool { return s.State == api.StateHeld && len(s.Problems) == 0 })
}

// ctl runs tenurectl as the nodes' user.
func (u *withUsers) ctl(ctx context.Context, n *lab.Node, args ...string) {
	u.t.Helper()
	r := cluster.Run(ctx, u.t, n.NS, "tenurectl", append(args, "--etcd-endpoints="+u.Etcd.URL(), "--etcd-username=tenure", "--etcd-password-file="+u.password)...)
	if r.Code != 0 {
		u.t.Errorf("tenurectl %v: %s", args, r)
	}
}

// dead is a node that leaves, and another whose subnet is taken away.
func (u *withUsers) dead(ctx context.Context, living, gone *lab.Node) {
	u.t.Helper()
	subnet := cluster.Status(ctx, u.t, gone).Subnet
	gone.Kill()
	u.ctl(ctx, living, "release", subnet, "--force", "--machine-is-off")
	if r := cluster.Run(ctx, u.t, living.NS, "tenurectl", "leave", "--socket="+living.Socket); r.Code != 0 {
		u.t.Errorf("leave: %s", r)
	}
	if err := living.Stop(ctx); err != nil {
		u.t.Fatal(err)
	}
	u.start(ctx, living)
	cluster.WaitState(ctx, u.t, living, api.StateHeld)
}

// outside is what the user must not be able to do.
func (u *withUsers) outside(ctx context.Context) {
	u.t.Helper()
	lease, err := u.root.Grant(ctx, 600)
	if err != nil {
		u.t.Fatal(err)
	}
	for _, key := range []string{"/registry/pods", "/tenure/networkX", "/tenure/network2/config"} {
		if _, err := u.root.Put(ctx, key, "theirs", clientv3.WithLease(lease.ID)); err != nil {
			u.t.Fatal(err)
		}
	}
	c := u.client(ctx, "tenure", nodesPassword)
	refused := map[string]func() error{
		"user list":    func() error { _, err := c.UserList(ctx); return err },
		"user add":     func() error { _, err := c.UserAdd(ctx, "x", "y"); return err },
		"own rights":   func() error { _, err := c.UserGrantRole(ctx, "tenure", "root"); return err },
		"role":         func() error { _, err := c.RoleDelete(ctx, "tenure"); return err },
		"auth disable": func() error { _, err := c.AuthDisable(ctx); return err },
		"defragment":   func() error { _, err := c.Defragment(ctx, u.Etcd.URL()); return err },
		"disarm": func() error {
			_, err := c.AlarmDisarm(ctx, &clientv3.AlarmMember{MemberID: 1, Alarm: etcdserverpb.AlarmType_NOSPACE})
			return err
		},
		"move leader":  func() error { _, err := c.MoveLeader(ctx, 1); return err },
		"compact":      func() error { _, err := c.Compact(ctx, 1); return err },
		"revoke":       func() error { _, err := c.Revoke(ctx, lease.ID); return err },
		"keep alive":   func() error { _, err := c.KeepAliveOnce(ctx, lease.ID); return err },
		"add a member": func() error { _, err := c.MemberAdd(ctx, []string{"http://192.0.2.9:2380"}); return err },
		"snapshot": func() error {
			r, err := c.Snapshot(ctx)
			if err == nil {
				_, err = r.Read(make([]byte, 1))
			}
			return err
		},
		"all keys": func() error { _, err := c.Get(ctx, "", clientv3.WithPrefix()); return err },
		"watch":    func() error { return watches(ctx, c, "/tenure/") },
		"a transaction": func() error {
			_, err := c.Txn(ctx).Then(clientv3.OpPut(prefix+"x", "1"), clientv3.OpPut("/registry/pods", "1")).Commit()
			return err
		},
	}
	for _, key := range []string{"/registry/pods", "/tenure/networkX", "/tenure/network", "/tenure/network2/config"} {
		refused["get "+key] = func() error { _, err := c.Get(ctx, key); return err }
		refused["put "+key] = func() error { _, err := c.Put(ctx, key, "ours"); return err }
		refused["delete "+key] = func() error { _, err := c.Delete(ctx, key); return err }
	}
	for what, try := range refused {
		var err error
		cluster.Eventually(ctx, u.t, 10*time.Second, what+" is answered", func() error {
			// A member may have yet to hear of the client's token.
			if err = rpctypes.Error(try()); errors.Is(err, rpctypes.ErrInvalidAuthToken) {
				return err
			}
			return nil
		})
		if !errors.Is(err, rpctypes.ErrPermissionDenied) {
			u.t.Errorf("%s, with the nodes' role: %v", what, err)
		}
	}
}

// watches begins a watch, whose refusal the client has in words only.
func watches(ctx context.Context, c *clientv3.Client, prefix string) error {
	resp := <-c.Watch(ctx, prefix, clientv3.WithPrefix())
	err := resp.Err()
	for _, known := range []error{rpctypes.ErrGRPCPermissionDenied, rpctypes.ErrGRPCInvalidAuthToken} {
		if err != nil && err.Error() == known.Error() {
			return known
		}
	}
	return err
}
