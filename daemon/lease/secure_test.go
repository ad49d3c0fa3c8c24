package lease

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/etcdtest"
)

// TestSecureStore is an etcd with TLS, client certificates and users, as
// docs/securing-etcd.md has it: the role that it names is enough for all that a node and
// tenurectl init do, by password or by the certificate's common name; a node with another password holds nothing, says so, and
// tells the password to nobody; who has no certificate gets no answer.
func TestSecureStore(t *testing.T) {
	t.Parallel()
	s := etcdtest.StartSecure(t)
	const secret = "correct horse"
	passwords := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(passwords, name)
		if err := writeFile(path, text); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := conf.Etcd{Endpoints: []string{s.Endpoint}, Prefix: prefix, CAFile: s.CA, CertFile: s.Cert, KeyFile: s.Key,
		Username: "tenure", PasswordFile: write("good", secret+"\n")}
	root := good
	root.Username, root.PasswordFile = "", ""
	enableUsers(t, root, secret)

	c, err := Dial(good)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := Init(t.Context(), c, prefix, []byte(fourSubnets)); err != nil {
		t.Fatalf("init with the role of docs/securing-etcd.md: %v", err)
	}
	if _, err := c.Put(t.Context(), "/registry/pods", "x"); err == nil {
		t.Error("the role may write keys of others")
	}

	for name, via := range map[string]conf.Etcd{"n1": good, "n3": root} {
		h := newHost(t, name, s.Endpoint)
		h.via = via
		d := h.start()
		first := d.waitHeld().LastProof
		d.wait("a proof later", func(v View) bool { return v.LastProof > first })
		if err := d.Leave(t.Context()); err != nil {
			t.Errorf("%s, leave: %v", name, err)
		}
		tellsNobody(t, h, d.View(), secret)
	}

	bad := newHost(t, "n2", s.Endpoint)
	bad.via = good
	bad.via.PasswordFile = write("bad", "battery staple")
	w := bad.start().wait("etcd-refuses", func(v View) bool { return hasProblem(v, etcdRefuses) })
	if w.Held || w.State == api.StateHeld {
		t.Error("a node with another password holds a subnet")
	}
	tellsNobody(t, bad, w, "battery staple")

	for name, change := range map[string]func(*conf.Etcd){
		"no certificate": func(e *conf.Etcd) { e.CertFile, e.KeyFile = "", "" },
		"no authority":   func(e *conf.Etcd) { e.CAFile = "" },
	} {
		e := root
		change(&e)
		if err := asks(t, e); err == nil || errors.Is(err, rpctypes.ErrUserEmpty) {
			t.Errorf("with %s etcd answers: %v", name, err)
		}
	}
}

// asks puts one question to etcd.
func asks(t *testing.T, e conf.Etcd) error {
	t.Helper()
	c, err := Dial(e)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err = c.Get(ctx, prefix)
	return err
}

// tellsNobody: neither the log, nor status, nor the node's file has the secret.
func tellsNobody(t *testing.T, h *host, v View, secret string) {
	t.Helper()
	said, err := json.Marshal([]any{v.Reason, v.Problems, v.LostWhy})
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(filepath.Join(h.dir, "node.json"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	if h.log.lines(secret) > 0 || strings.Contains(string(said), secret) || strings.Contains(string(file), secret) {
		t.Errorf("the password is in log, status or node.json: %s", said)
	}
}

// enableUsers sets up what docs/securing-etcd.md says, with root's rights.
func enableUsers(t *testing.T, e conf.Etcd, password string) {
	t.Helper()
	c, err := Dial(e)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for _, step := range []func() error{
		func() error { _, err := c.RoleAdd(ctx, "tenure"); return err },
		func() error {
			_, err := c.RoleGrantPermission(ctx, "tenure", prefix+"/", clientv3.GetPrefixRangeEnd(prefix+"/"), clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		},
		func() error { _, err := c.UserAdd(ctx, "tenure", password); return err },
		func() error { _, err := c.UserGrantRole(ctx, "tenure", "tenure"); return err },
		func() error {
			_, err := c.UserAddWithOptions(ctx, "client", "", &clientv3.UserAddOptions{NoPassword: true})
			return err
		},
		func() error { _, err := c.UserGrantRole(ctx, "client", "tenure"); return err },
		func() error { _, err := c.UserAdd(ctx, "root", "of the test"); return err },
		func() error { _, err := c.UserGrantRole(ctx, "root", "root"); return err },
		func() error { _, err := c.AuthEnable(ctx); return err },
	} {
		if err := step(); err != nil {
			t.Fatalf("set users up: %v", err)
		}
	}
}
