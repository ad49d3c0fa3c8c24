package lease

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/etcdtest"
	"github.com/tenure-cni/tenure/test/lab/etcdproxy"
)

// users is an etcd with users, behind a proxy that counts.
type users struct {
	t      *testing.T
	server *etcdtest.Server
	proxy  *etcdproxy.Proxy
	root   *clientv3.Client
	etcd   conf.Etcd // of the user "tenure"
}

const firstPassword = "correct horse"

func withUsers(t *testing.T) *users {
	t.Helper()
	u := &users{t: t, server: etcdtest.Start(t)}
	u.proxy = etcdproxy.Start(t, u.server.Endpoint)
	u.etcd = conf.Etcd{Endpoints: []string{u.proxy.URL()}, Prefix: prefix, Username: "tenure", PasswordFile: filepath.Join(t.TempDir(), "password")}
	u.write(firstPassword)
	enableUsers(t, conf.Etcd{Endpoints: []string{u.server.Endpoint}}, firstPassword)
	secret := filepath.Join(t.TempDir(), "root")
	if err := os.WriteFile(secret, []byte("of the test"), 0o600); err != nil {
		t.Fatal(err)
	}
	u.root = u.client(conf.Etcd{Endpoints: []string{u.server.Endpoint}, Username: "root", PasswordFile: secret})
	return u
}

func (u *users) client(e conf.Etcd) *clientv3.Client {
	u.t.Helper()
	c, err := Dial(e)
	if err != nil {
		u.t.Fatal(err)
	}
	u.t.Cleanup(func() { _ = c.Close() })
	return c
}

// write puts a password into the user's file.
func (u *users) write(password string) {
	u.t.Helper()
	if err := os.WriteFile(u.etcd.PasswordFile, []byte(password+"\n"), 0o600); err != nil {
		u.t.Fatal(err)
	}
}

// change gives the user another password in etcd.
func (u *users) change(password string) {
	u.t.Helper()
	if _, err := u.root.UserChangePassword(u.t.Context(), "tenure", password); err != nil {
		u.t.Fatal(err)
	}
}

// hashes is how often etcd was asked to compare a password.
func (u *users) hashes() int { return u.proxy.Count(pb.Auth_Authenticate_FullMethodName) }

// TestOneTokenForManyCalls: renewals, transactions and watches share one token.
// One that a restarted etcd does not know costs no call, and a watch goes on.
func TestOneTokenForManyCalls(t *testing.T) {
	t.Parallel()
	u := withUsers(t)
	c := u.client(u.etcd)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	granted, err := c.Grant(ctx, 60)
	if err != nil {
		t.Fatal(err)
	}
	events := c.Watch(clientv3.WithRequireLeader(ctx), prefix+"/", clientv3.WithPrefix())
	renew := func(n int) {
		t.Helper()
		for range n {
			if _, err := keepAlive(ctx, asking{c}, granted.ID, patient(maxCall)); err != nil {
				t.Fatalf("renew: %v", err)
			}
		}
	}
	seen := func(value string) {
		t.Helper()
		if _, err := c.Put(ctx, prefix+"/x", value); err != nil {
			t.Fatal(err)
		}
		for resp := range events {
			if err := resp.Err(); err != nil {
				t.Fatalf("watch: %v", err)
			}
			for _, e := range resp.Events {
				if string(e.Kv.Value) == value {
					return
				}
			}
		}
		t.Fatalf("the watch ended before %q: %v", value, ctx.Err())
	}
	renew(20)
	seen("before")
	if n := u.hashes(); n != 1 {
		t.Errorf("20 renewals, a write and a watch: etcd compared a password %d times", n)
	}
	u.server.Stop()
	u.server.Restart(t)
	renew(20)
	seen("after")
	// A watch that is opened while the token is being replaced may take one more.
	if n := u.hashes(); n < 2 || n > 3 {
		t.Errorf("with a token that is not known any more: %d times", n)
	}
}

// TestPasswordChanges: a password that changes in etcd is a problem that says
// which file to write, asks etcd less and less often, and is over once the file
// has it, without a restart and before the fence closes.
func TestPasswordChanges(t *testing.T) {
	t.Parallel()
	u := withUsers(t)
	if _, err := Init(t.Context(), u.client(u.etcd), prefix, []byte(strings.Replace(fourSubnets, "5s", "15s", 1))); err != nil {
		t.Fatal(err)
	}
	h := newHost(t, "n1", u.proxy.URL())
	h.via = u.etcd
	d := h.start()
	was := d.waitHeld()

	u.change("battery staple")
	before := u.hashes()
	v := d.wait("etcd-refuses", func(v View) bool { return hasProblem(v, etcdRefuses) })
	u.names(v, u.etcd.PasswordFile, "authentication failed", "--etcd-password-file")
	if v.State != api.StateUnproven || hasProblem(v, "etcd-unreachable") {
		t.Errorf("state %s, problems %v", v.State, v.Problems)
	}
	d.wait("two more tries", func(View) bool { return u.hashes() >= before+2 })
	if err := os.Remove(u.etcd.PasswordFile); err != nil {
		t.Fatal(err)
	}
	u.names(d.wait("no file", func(v View) bool {
		return strings.Contains(problemText(v, etcdRefuses), "no such file")
	}), "no password of etcd user \"tenure\"")
	asked := u.hashes()
	u.write("battery staple")
	v = d.waitHeld()
	if hasProblem(v, etcdRefuses) || v.Holding.Subnets() != was.Holding.Subnets() || h.fence.Get().Closed != 0 {
		t.Errorf("after the file was written: %v, %s, closed %d times", v.Problems, v.Holding.Subnets(), h.fence.Get().Closed)
	}
	if n := u.hashes() - asked; n != 1 {
		t.Errorf("with the right password in the file etcd was asked %d times", n)
	}
	if n := h.log.lines("does not answer"); n != 0 {
		t.Errorf("%d lines of the log say that etcd, which refuses the password, does not answer", n)
	}
}

// names makes sure that a problem's text and fix say these.
func (u *users) names(v View, words ...string) {
	u.t.Helper()
	for _, w := range words {
		if text := problemText(v, etcdRefuses); !strings.Contains(text, w) {
			u.t.Errorf("%q is not in the problem: %s", w, text)
		}
	}
}

// problemText is a problem with its fix.
func problemText(v View, code string) string {
	p := problemOf(v, code)
	return p.Text + " / " + p.Fix
}

// TestWrongPassword asks etcd a few times, whatever else the client has to ask,
// and is over when the user is given that password.
func TestWrongPassword(t *testing.T) {
	t.Parallel()
	u := withUsers(t)
	u.write("wrong")
	c := u.client(u.etcd)
	for range 50 {
		if _, err := c.Get(t.Context(), prefix); !errors.Is(err, rpctypes.ErrAuthFailed) {
			t.Fatalf("with a wrong password: %v", err)
		}
	}
	if n := u.hashes(); n != 1 {
		t.Errorf("50 calls with one wrong password asked etcd %d times", n)
	}
	u.write("wrong too")
	if _, err := c.Get(t.Context(), prefix); !errors.Is(err, rpctypes.ErrAuthFailed) || u.hashes() != 2 {
		t.Errorf("with another one: %v, and etcd was asked %d times", err, u.hashes())
	}
	u.change("wrong too")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for {
		_, err := c.Get(ctx, prefix+"/")
		if err == nil {
			return
		}
		if !wait(ctx, 50*time.Millisecond) {
			t.Fatalf("the user was given the password: %v", err)
		}
	}
}

// TestAskerGivesUp: who gives up while it asks for a token, or waits for the one
// that another asks for, returns in its own time and leaves the turn to others.
func TestAskerGivesUp(t *testing.T) {
	t.Parallel()
	u := withUsers(t)
	c := u.client(u.etcd)
	slow := u.proxy.Delay(etcdproxy.Always, etcdproxy.Method(pb.Auth_Authenticate_FullMethodName), etcdproxy.Request, time.Hour)
	get := func(within time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		_, err := c.Get(ctx, prefix+"/")
		return err
	}
	const short, long = 300 * time.Millisecond, 30 * time.Second
	began, gaveUp, patient := time.Now(), make(chan error), make(chan error, 1)
	const many = 8
	for range many {
		go func() { gaveUp <- get(short) }()
	}
	for slow.Hits() == 0 && wait(t.Context(), time.Millisecond) {
	}
	go func() { patient <- get(long) }()
	for range many {
		if err := <-gaveUp; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("without a token: %v", err)
		}
	}
	if took := time.Since(began); took > long/2 {
		t.Errorf("given up after %s", took)
	}
	slow.Remove()
	if err := <-patient; err != nil {
		t.Errorf("who waited on: %v", err)
	}
}

// TestRightsLost: a role that is taken from the user leaves the subnet in force
// until its deadline and says which right is missing where; given back, all goes
// on.
func TestRightsLost(t *testing.T) {
	t.Parallel()
	u := withUsers(t)
	if _, err := Init(t.Context(), u.client(u.etcd), prefix, []byte(strings.Replace(fourSubnets, "5s", "9s", 1))); err != nil {
		t.Fatal(err)
	}
	h := newHost(t, "n1", u.proxy.URL())
	h.via = u.etcd
	d := h.start()
	was := d.waitHeld()
	if _, err := u.root.UserRevokeRole(t.Context(), "tenure", "tenure"); err != nil {
		t.Fatal(err)
	}
	v := d.wait("etcd-refuses", func(v View) bool { return hasProblem(v, etcdRefuses) })
	u.names(v, "permission denied", "read and write all keys under "+prefix+"/", "role grant-permission ROLE --prefix=true readwrite "+prefix+"/")
	if v.State != api.StateUnproven || h.fence.Get().Closed != 0 {
		t.Errorf("state %s, closed %d times", v.State, h.fence.Get().Closed)
	}
	if _, err := u.root.UserGrantRole(t.Context(), "tenure", "tenure"); err != nil {
		t.Fatal(err)
	}
	v = d.waitHeld()
	if hasProblem(v, etcdRefuses) || v.Holding.LeaseID() != was.Holding.LeaseID() || h.fence.Get().Closed != 0 {
		t.Errorf("with the role again: %v, lease %x, closed %d times", v.Problems, v.Holding.LeaseID(), h.fence.Get().Closed)
	}
}

// TestRenewalsThatFail: as long as renewals are not answered that is a problem,
// although etcd answers all else and shows the key.
func TestRenewalsThatFail(t *testing.T) {
	t.Parallel()
	s, _ := cluster(t, fourSubnets)
	p := etcdproxy.Start(t, s.Endpoint)
	mute := p.Delay(etcdproxy.Always, etcdproxy.Method(pb.Lease_LeaseKeepAlive_FullMethodName), etcdproxy.Request, 3*time.Second)
	h := newHost(t, "n1", p.URL())
	d := h.start()
	d.wait("etcd-unreachable", func(v View) bool { return hasProblem(v, "etcd-unreachable") })
	tries := mute.Hits()
	d.wait("two more renewals", func(v View) bool {
		if v.Held && !hasProblem(v, "etcd-unreachable") {
			t.Errorf("without a proof: state %s (%s), problems %v", v.State, v.Reason, v.Problems)
			return true
		}
		return mute.Hits() >= tries+4
	})
	mute.Remove()
	if v := d.waitHeld(); hasProblem(v, "etcd-unreachable") {
		t.Errorf("held, and %v", v.Problems)
	}
}

// TestReadOnlyRole: a node whose role lacks the right to write waits, says so in
// the words that the loss of the role has, and in the log once, however many
// subnets it tries.
func TestReadOnlyRole(t *testing.T) {
	t.Parallel()
	u := withUsers(t)
	ctx := t.Context()
	if _, err := Init(ctx, u.root, prefix, []byte(fourSubnets)); err != nil {
		t.Fatal(err)
	}
	all := prefix + "/"
	if _, err := u.root.RoleGrantPermission(ctx, "tenure", all, clientv3.GetPrefixRangeEnd(all), clientv3.PermissionType(clientv3.PermRead)); err != nil {
		t.Fatal(err)
	}
	h := newHost(t, "n1", u.proxy.URL())
	h.via = u.etcd
	d := h.start()
	v := d.wait("it is refused", func(v View) bool { return hasProblem(v, etcdRefuses) })
	u.names(v, "may not read and write", all, "permission denied")
	if p := problemOf(v, etcdRefuses); v.State != api.StateWaiting || !strings.Contains(p.Fix, "etcdctl role grant-permission ROLE --prefix=true readwrite "+all) {
		t.Errorf("%s, %+v", v.State, p)
	}
	before := u.proxy.Count(pb.KV_Txn_FullMethodName)
	d.wait("three more tries", func(View) bool { return u.proxy.Count(pb.KV_Txn_FullMethodName) >= before+3 })
	if n := h.log.lines("msg=waiting"); n != 1 {
		t.Errorf("%d lines of the log say why it waits, want one:\n%s", n, h.log.b.String())
	}
	if n := h.log.lines("does not answer"); n != 0 {
		t.Errorf("%d lines say that etcd does not answer", n)
	}
}

// TestUsersComeLast: where every node has its password before etcd has users,
// nobody notices when they are switched on: no renewal fails.
func TestUsersComeLast(t *testing.T) {
	t.Parallel()
	s := etcdtest.Start(t)
	h := newHost(t, "n1", s.Endpoint)
	file := filepath.Join(t.TempDir(), "password")
	if err := writeFile(file, firstPassword); err != nil {
		t.Fatal(err)
	}
	h.via = conf.Etcd{Endpoints: []string{s.Endpoint}, Prefix: prefix, Username: "tenure", PasswordFile: file}
	h.birth = []byte(fourSubnets)
	d := h.start()
	d.waitHeld()
	enableUsers(t, conf.Etcd{Endpoints: []string{s.Endpoint}}, firstPassword)
	enabled, proofs := bootClock(), map[time.Duration]bool{}
	d.wait("three proofs since", func(v View) bool {
		if v.State != api.StateHeld || len(v.Problems) > 0 {
			t.Errorf("%s (%s), %v", v.State, v.Reason, v.Problems)
		}
		if v.LastProof > enabled {
			proofs[v.LastProof] = true
		}
		return len(proofs) == 3
	})
	if n := h.log.lines("level=WARN"); n > 0 {
		t.Errorf("%d warnings in the log:\n%s", n, h.log.b.String())
	}
}

// TestRestoredStoreWithUsers: a token names the place in etcd's log at which it
// was given, and a member that is not there yet waits for that place before it
// says that it does not know the token. In a store that was restored that may
// take days. So a token that brings no answer is not used again, and the node
// proves its subnet long before its deadline.
func TestRestoredStoreWithUsers(t *testing.T) {
	t.Parallel()
	u := withUsers(t)
	ctx := t.Context()
	if _, err := Init(ctx, u.root, prefix, []byte(strings.Replace(fourSubnets, "5s", "15s", 1))); err != nil {
		t.Fatal(err)
	}
	backup := u.server.Backup(t)
	for range 500 {
		if _, err := u.root.Put(ctx, "/others", "x"); err != nil {
			t.Fatal(err)
		}
	}
	h := newHost(t, "n1", u.proxy.URL())
	h.via = u.etcd
	d := h.start()
	was := d.waitHeld()
	u.server.Restore(t, backup)
	restored := bootClock()
	v := d.wait("it has proven its subnet in the restored store", func(v View) bool { return v.LastProof > restored && v.State == api.StateHeld })
	if v.Holding.Subnets() != was.Holding.Subnets() || h.fence.Get().Closed != 0 {
		t.Errorf("it holds %s, it held %s, closed %d times", v.Holding.Subnets(), was.Holding.Subnets(), h.fence.Get().Closed)
	}
}
