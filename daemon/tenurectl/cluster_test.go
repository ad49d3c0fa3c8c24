package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"
	"sigs.k8s.io/yaml"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/lease"
	"github.com/tenure-cni/tenure/daemon/server"
	"github.com/tenure-cni/tenure/test/etcdtest"
)

// TestGrid: the map as a person sees it, one by one and condensed.
func TestGrid(t *testing.T) {
	small, _, err := conf.ParseNetwork([]byte(`{"Network":"10.5.0.0/16","SubnetMin":"10.5.1.0","SubnetMax":"10.5.70.0"}`))
	if err != nil {
		t.Fatal(err)
	}
	runs := []lease.Run{
		{From: 0, Count: 2, State: api.SubnetHeld}, {From: 2, Count: 1, State: api.SubnetHeld, Mine: true}, {From: 3, Count: 1, State: api.SubnetReserved},
		{From: 10, Count: 1, State: api.SubnetDying}, {From: 16, Count: 4, State: api.SubnetHeld}, {From: 20, Count: 1, State: api.SubnetReserved},
		{From: 25, Count: 2, State: api.SubnetReserved}, {From: 69, Count: 1, State: api.SubnetReleased},
	}
	m := lease.Map{Config: small, Runs: runs, ClusterMap: api.ClusterMap{Network: "10.5.0.0/16", SubnetLen: 24, First: "10.5.1.0/24", Last: "10.5.70.0/24",
		Counts: api.SubnetCounts{Total: 70, Held: 7, Dying: 2, Reserved: 4, Free: 57, Mine: 1, Outside: 1}}}
	for name, c := range map[string]struct {
		most int
		want string
	}{
		"one by one": {cellsUsual, `10.5.0.0/16, 70 subnets of /24, from 10.5.1.0/24 to 10.5.70.0/24

10.5.1.0   ##@r......!.....####r....rr.....................................
10.5.65.0  .....!

@ this node's: 1
# held: 7 in all
! dying, or released by force: 2
r reserved: 4
. free: 57
1 records lie outside of these: tenurectl leases
`},
		"condensed": {20, `10.5.0.0/16, 70 subnets of /24, from 10.5.1.0/24 to 10.5.70.0/24

10.5.1.0  @.!.#rr..........!

@ this node's among them: 1
! dying ones, or ones released by force, among them: 2
# none of them free; held: 7 in all
+ more than half of them taken
: some of them taken
r all that are taken are reserved: 4
. all free: 57
one character is 4 subnets
1 records lie outside of these: tenurectl leases
`},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := drawMap(&out, m, c.most, false); err != nil {
				t.Fatal(err)
			}
			if out.String() != c.want {
				t.Errorf("printed\n%swant\n%s", out.String(), c.want)
			}
		})
	}
	var out bytes.Buffer
	if err := drawMap(&out, m, cellsUsual, true); err != nil || !strings.Contains(out.String(), "\x1b[1;36m@\x1b[0m") {
		t.Errorf("in colour: %q, %v", out.String(), err)
	}
	for name, c := range map[string]struct {
		cell cell
		want byte
	}{
		"half": {cell{size: 4, held: 2}, ':'}, "more": {cell{size: 4, held: 2, reserved: 1}, '+'}, "full": {cell{size: 4, held: 3, reserved: 1}, '#'},
		"mine among dying": {cell{size: 4, dying: 3, mine: true}, '@'}, "one dies": {cell{size: 4, held: 2, dying: 1}, '!'}, "none": {cell{size: 4}, '.'},
	} {
		if got := c.cell.sign(); got != c.want {
			t.Errorf("%s: %c, want %c", name, got, c.want)
		}
	}
	for total, want := range map[uint64]uint64{1: 1, 2048: 1, 2049: 2, 1 << 16: 32, 1 << 62: 1 << 51} {
		if got := perCell(total, cellsUsual); got != want {
			t.Errorf("of %d subnets, %d are in a cell, want %d", total, got, want)
		}
	}
}

// store is a real etcd with a born cluster of four subnets, in which n1 and n2
// hold one each.
func store(t *testing.T) (*etcdtest.Server, *clientv3.Client) {
	t.Helper()
	s := etcdtest.Start(t)
	c := s.Client(t)
	if code, _, said := ran(t.Context(), "init", "--network-config", `{"Network":"10.5.0.0/22","SubnetLen":24}`, "--etcd-endpoints", s.Endpoint); code != exitOK {
		t.Fatalf("init: %d, %s", code, said)
	}
	for i, name := range []string{"n1", "n2"} {
		l, err := c.Grant(t.Context(), 86400)
		if err != nil {
			t.Fatal(err)
		}
		record := fmt.Sprintf(`{"PublicIP":"192.0.2.%d","BackendType":"vxlan","Tenure":{"Node":%q,"UID":"uid-%s","Boot":"b","Epoch":7}}`, i+1, name, name)
		owner := fmt.Sprintf(`{"UID":"uid-%s","Node":%q,"Epoch":7,"Since":"2026-11-30T00:00:00Z","Why":"never owned"}`, name, name)
		put(t, c, fmt.Sprintf("subnets/10.5.%d.0-24", i+1), record, clientv3.WithLease(l.ID))
		put(t, c, fmt.Sprintf("tenure/owners/10.5.%d.0-24", i+1), owner)
	}
	return s, c
}

func put(t *testing.T, c *clientv3.Client, key, value string, opts ...clientv3.OpOption) {
	t.Helper()
	if _, err := c.Put(t.Context(), conf.DefaultEtcdPrefix+"/"+key, value, opts...); err != nil {
		t.Fatal(err)
	}
}

// access is a tenured's socket that tells how to reach etcd.
func access(t *testing.T, a api.EtcdAccess) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "tenured.sock")
	l, err := server.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- server.Serve(ctx, l, server.Handlers{Status: healthy, Etcd: func() *api.EtcdAccess { return &a }}, slog.New(slog.DiscardHandler))
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return socket
}

// wants is one command and what is expected of it.
type wants struct {
	args string
	code int
	out  string // in what it prints
	said string // in what it says on standard error
}

func check(t *testing.T, reach []string, all []wants) {
	t.Helper()
	for _, w := range all {
		began := time.Now()
		code, out, said := ran(t.Context(), append(strings.Fields(w.args), reach...)...)
		if d := time.Since(began); d > clusterTimeout {
			t.Errorf("%s took %s", w.args, d)
		}
		if code != w.code || !strings.Contains(out, w.out) || !strings.Contains(said, w.said) || w.code == exitOK && w.said == "" && said != "" {
			t.Errorf("%s: exit code %d, want %d\nprinted %s\nwant %q in it\nsaid %s\nwant %q in it", w.args, code, w.code, out, w.out, said, w.said)
		}
	}
}

// TestClusterVerbs runs every verb against a real etcd, in the way of the node's
// socket and of the flags.
func TestClusterVerbs(t *testing.T) {
	s, c := store(t)
	flags := []string{"--etcd-endpoints", s.Endpoint}
	socket := []string{"--socket", access(t, api.EtcdAccess{Node: "n1", UID: "uid-n1", Endpoints: []string{s.Endpoint}, Prefix: conf.DefaultEtcdPrefix})}

	check(t, socket, []wants{
		{"leases", 0, "n1 (here)  10.5.1.0/24  192.0.2.1  7", ""},
		{"leases -o wide", 0, "uid-n2", ""},
		{"leases --ttl=false", 0, "?", ""},
		{"map", 0, "10.5.0.0  .@#.", ""},
		{"history n1", 0, "10.5.1.0/24  n1    7      held   never owned", ""},
		{"history", 0, "10.5.2.0/24", ""},
		{"history n7", 0, "", "nothing is on record"},
		{"config get", 0, `"Network": "10.5.0.0/22"`, ""},
		{"config get -o yaml", 0, "Network: 10.5.0.0/22\n", ""},
		{"config get -o wide", 0, `"LeaseTTL": "24h"`, ""},
	})
	check(t, flags, []wants{
		{"leases", 0, "n1    10.5.1.0/24  192.0.2.1  7      held", ""},
		{"map", 0, "10.5.0.0  .##.", ""},
		{"leases -o xml", 2, "", `"xml"`},
		{"map now", 2, "", "now"},
		{"reserve 10.5.3.0/24 n3", 0, "10.5.3.0/24 is reserved for n3\n  no node n3", ""},
		{"reserve 10.5.3.0/24 n3", 0, "was reserved before", ""},
		{"reserve 10.5.3.0/24 n4", 1, "", "reserved for another node"},
		{"reserve 10.5.1.0/24 n4", 1, "", "--later"},
		{"reserve 10.5.1.0/24 n4 --later", 0, "only n4 can have it", ""},
		{"reserve 10.5.9.0/24 n4", 2, "", "10.5.0.0/22"},
		{"map -o json", 0, `"reserved": 1`, ""},
		{"map", 0, ".##r", ""},
		{"leases", 0, "reserved for n4, once this node has gone", ""},
		{"unreserve 10.5.1.0/24 -o yaml", 0, "changed: true\n", ""},
		{"unreserve 10.5.1.0/24", 1, "", "not reserved"},
		{"unreserve 10.5.3.0-24", 0, "no longer reserved for n3", ""},
		{"init --network 10.5.0.0/16 -o json", 0, `"configApplied": false`, ""},
		{"init --network 10.5.0.0/16", 0, "tenurectl config set", ""},
		{"leases --etcd-prefix /other", 1, "tenurectl init", ""},
		{"map --etcd-prefix /other", 1, "", "no network config"},
		{"config get --etcd-prefix /other", 1, "", "no network config"},
		{"release n9 --force", 2, "", "no node and no subnet"},
		{"release n2 --force -o json", 0, `"until": "`, ""},
		{"release n2 --force", 2, "", "released already"},
		{"leases", 0, "released", ""},
		{"map", 0, ".#!.", ""},
		{"history 10.5.2.7", 0, "released by force", ""},
	})
	// What is odd for the whole cluster is an error.
	put(t, c, "subnets/10.5.1.128-25", `{"PublicIP":"192.0.2.7","Tenure":{"Node":"n7","UID":"u","Boot":"b","Epoch":1}}`)
	check(t, socket, []wants{{"leases", 1, "overlapping-subnets", ""}, {"leases -o json", 1, `"code": "overlapping-subnets"`, ""}})
}

// TestClusterForms: json and yaml are one object, of the documented type.
func TestClusterForms(t *testing.T) {
	s, _ := store(t)
	for verb, object := range map[string]any{
		"leases": &api.ClusterLeases{}, "map": &api.ClusterMap{}, "history": &[]api.Tenancy{},
		"reserve 10.5.3.0/24 n3": &api.Reserved{}, "init --network 10.5.0.0/22": &api.Born{},
		`config set {"Network":"10.5.0.0/22"} --dry-run`: &api.ConfigEffect{},
	} {
		var texts []string
		for _, form := range []string{"json", "yaml"} {
			_, out, said := ran(t.Context(), append(strings.Fields(verb), "-o", form, "--etcd-endpoints", s.Endpoint)...)
			b := []byte(out)
			if form == "yaml" {
				var err error
				if b, err = yaml.YAMLToJSON(b); err != nil {
					t.Fatal(err)
				}
			}
			d := json.NewDecoder(bytes.NewReader(b))
			d.DisallowUnknownFields()
			if err := d.Decode(object); err != nil || said != "" {
				t.Errorf("%s -o %s: %v, said %s, printed %s", verb, form, err, said, out)
			}
			again, err := json.Marshal(object)
			if err != nil {
				t.Fatal(err)
			}
			texts = append(texts, string(again))
		}
		if strings.HasPrefix(verb, "reserve") { // the first one changed something
			texts[0] = strings.Replace(texts[0], `"changed":true`, `"changed":false`, 1)
			texts[0] = texts[0][:strings.Index(texts[0], `"notes"`)]
			texts[1] = texts[1][:strings.Index(texts[1], `"notes"`)]
		}
		if texts[0] != texts[1] && verb != "leases" { // whose seconds go on
			t.Errorf("%s: as json\n%s\nas yaml\n%s", verb, texts[0], texts[1])
		}
	}
}

// typed runs the command with a person at the keyboard.
func typed(t *testing.T, keys string, args ...string) (code int, out, said string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	in, w, err := os.Pipe() // a file, as a terminal is: an editor gets it whole
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	_, err = w.WriteString(keys)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(&stdout)
	root.SetErr(&stderr)
	err = root.ExecuteContext(t.Context())
	var exit *exitError
	if errors.As(err, &exit) {
		code = exit.code
		stderr.WriteString(err.Error())
	}
	return code, stdout.String(), stderr.String()
}

// TestConfigSet: it shows, asks, and writes only what was agreed to and what
// nodes would take.
func TestConfigSet(t *testing.T) {
	s, c := store(t)
	now := func() string {
		kvs := etcdtest.Get(t, c, conf.DefaultEtcdPrefix+"/config").Kvs
		return string(kvs[0].Value)
	}
	const wide, narrow = `{"Network":"10.5.0.0/16"}`, `{"Network":"10.5.0.0/23","SubnetLen":24}`
	first := now()
	for _, w := range []struct {
		keys, config, flags string
		code                int
		out, said           string
		written             bool
	}{
		{"n\n", wide, "", exitStands, "10.5.0.0/22 → 10.5.0.0/16", "nothing is changed", false},
		{"", wide, "", exitUsage, "subnets after:  256 in all, 2 held, 0 reserved, 254 free", "--yes", false},
		{"y\n", wide, "--dry-run", exitOK, "256 in all", "", false},
		{"y\n", narrow, "", exitStands, "ORPHANED 10.5.2.0/24 of n2", "no place", false},
		{"y\n", narrow, "--yes", exitStands, "ORPHANED", "no place", false},
		{"y\n", `{"Network":"10.5.0.1/16"}`, "--yes", exitUsage, "", "host bits", false},
		{"y\n", "nonsense", "--yes", exitUsage, "", "JSON", false},
		{"y\n", "@/no/such/file", "--yes", exitUsage, "", "no/such/file", false},
		{"y\n", `{"Network":"10.5.0.0/22","SubnetLen":24,"LeaseTTL":"24h"}`, "", exitOK, "nothing changes", "", false},
		{"y\n", `{"Network":"127.0.0.0/8"}`, "--yes", exitUsage, "", "127.0.0.0/8", false},
		{"yes\n", wide, "", exitOK, "is written", "Write it?", true},
		{"", `{"Network":"10.0.0.0/8","SubnetLen":24}`, "--yes -o json", exitOK, `"applied": true`, "", true},
	} {
		args := append([]string{"config", "set", w.config, "--etcd-endpoints", s.Endpoint}, strings.Fields(w.flags)...)
		code, out, said := typed(t, w.keys, args...)
		if code != w.code || !strings.Contains(out, w.out) || !strings.Contains(said, w.said) {
			t.Errorf("set %s %s: exit code %d, want %d\nprinted %s\nwant %q in it\nsaid %s\nwant %q in it", w.config, w.flags, code, w.code, out, w.out, said, w.said)
		}
		want := first
		if w.written {
			want = w.config
		}
		if got := now(); got != want {
			t.Fatalf("set %s %s: etcd has %s", w.config, w.flags, got)
		}
		first = want
	}
}

// meddler writes to etcd when it is read from: while the person thinks.
type meddler struct {
	io.Reader
	do func()
}

func (m *meddler) Read(b []byte) (int, error) {
	if m.do != nil {
		m.do()
		m.do = nil
	}
	return m.Reader.Read(b)
}

// TestConfigSetLooksAgain: what changes while the person thinks is judged again.
func TestConfigSetLooksAgain(t *testing.T) {
	for name, w := range map[string]struct {
		key, value string
		code       int
		said       string
	}{
		"another config":               {"config", `{"Network":"10.5.0.0/21","SubnetLen":24}`, exitStands, "somebody else"},
		"a holder it has no place for": {"subnets/10.7.0.0-24", `{"PublicIP":"192.0.2.9"}`, exitStands, "no place"},
	} {
		t.Run(name, func(t *testing.T) {
			s, c := store(t)
			var out, said bytes.Buffer
			root := newRoot()
			root.SetArgs([]string{"config", "set", `{"Network":"10.5.0.0/16"}`, "--etcd-endpoints", s.Endpoint})
			root.SetIn(&meddler{strings.NewReader("y\n"), func() { put(t, c, w.key, w.value) }})
			root.SetOut(&out)
			root.SetErr(&said)
			err := root.ExecuteContext(t.Context())
			var exit *exitError
			if !errors.As(err, &exit) || exit.code != w.code || !strings.Contains(err.Error(), w.said) {
				t.Errorf("it ends with %v, printed %s", err, out.String())
			}
			if v := string(etcdtest.Get(t, c, conf.DefaultEtcdPrefix+"/config").Kvs[0].Value); strings.Contains(v, "/16") {
				t.Errorf("written all the same: %s", v)
			}
		})
	}
}

// TestConfigEdit goes through an editor, and keeps what was refused.
func TestConfigEdit(t *testing.T) {
	s, c := store(t)
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	t.Setenv("VISUAL", "")
	kept := func() int {
		files, err := filepath.Glob(filepath.Join(dir, "tenure-config-*"))
		if err != nil {
			t.Fatal(err)
		}
		return len(files)
	}
	for _, w := range []struct {
		editor, keys string
		code, kept   int
		said         string
		has          string
	}{
		{"true", "", exitOK, 0, "", "/22"},
		{"false", "", exitStands, 0, "nothing is changed", "/22"},
		{"sed -i s,/22,/40,", "", exitUsage, 1, "tenurectl config set @" + dir, "/22"},
		{"sed -i s,/22,/16,", "n\n", exitStands, 2, "nothing is changed", "/22"},
		{"sed -i s,/22,/16,", "y\n", exitOK, 2, "", "/16"},
	} {
		t.Setenv("EDITOR", w.editor)
		code, out, said := typed(t, w.keys, "config", "edit", "--etcd-endpoints", s.Endpoint)
		if code != w.code || !strings.Contains(said, w.said) || kept() != w.kept {
			t.Errorf("%s: exit code %d, want %d; %d files kept, want %d; printed %s said %s", w.editor, code, w.code, kept(), w.kept, out, said)
		}
		if v := string(etcdtest.Get(t, c, conf.DefaultEtcdPrefix+"/config").Kvs[0].Value); !strings.Contains(v, w.has) {
			t.Errorf("%s: etcd has %s", w.editor, v)
		}
	}
}

// TestHistoryFollows: one object for each change, and an interrupt is no error.
func TestHistoryFollows(t *testing.T) {
	s, c := store(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, w := io.Pipe()
	defer time.AfterFunc(20*time.Second, func() { _ = r.CloseWithError(errors.New("waited in vain")) }).Stop()
	done := make(chan int, 1)
	var said bytes.Buffer
	go func() {
		done <- run(ctx, []string{"history", "-f", "-o", "json", "10.5.2.0/24", "--etcd-endpoints", s.Endpoint}, w, &said)
		_ = w.Close()
	}()
	d := json.NewDecoder(r)
	next := func(state api.SubnetState) {
		t.Helper()
		var h api.Tenancy
		if err := d.Decode(&h); err != nil {
			t.Fatal(err)
		}
		if h.State != state || h.Node != "n2" {
			t.Errorf("told %+v, want %s", h, state)
		}
	}
	next(api.SubnetHeld)
	if _, err := c.Delete(t.Context(), conf.DefaultEtcdPrefix+"/subnets/10.5.2.0-24"); err != nil {
		t.Fatal(err)
	}
	next(api.SubnetEnded)
	cancel()
	if code := <-done; code != exitOK || said.Len() > 0 {
		t.Errorf("exit code %d, said %s", code, said.String())
	}
}

// TestReach: by which way etcd is reached, and what is said where it is not.
func TestReach(t *testing.T) {
	s, _ := store(t)
	gone := filepath.Join(t.TempDir(), "tenured.sock")
	old := serve(t, healthy())
	good := api.EtcdAccess{UID: "uid-n1", Endpoints: []string{s.Endpoint}, Prefix: conf.DefaultEtcdPrefix}
	other, noFile := good, good
	other.Prefix, noFile.CAFile = "/other", "/no/such/ca.pem"
	check(t, nil, []wants{
		{"leases --socket " + gone, 3, "", "--etcd-endpoints"},
		{"leases --socket " + old, 3, "", "older than this tenurectl"},
		{"leases --socket " + access(t, noFile), 3, "", "/no/such/ca.pem"},
		{"leases --socket " + access(t, other), 1, "no cluster is born under /other/", ""},
		{"leases --socket " + access(t, other) + " --etcd-endpoints " + s.Endpoint, 0, "10.5.1.0/24", ""}, // the flags count, and all of them
		{"leases --etcd-endpoints nonsense", 2, "", "nonsense"},
	})
}

// TestReachAlone: where no daemon runs and none was named, the flags' defaults
// are tried, and a failure says so.
func TestReachAlone(t *testing.T) {
	gone := filepath.Join(t.TempDir(), "tenured.sock")
	r := newReach(&cobra.Command{}, &gone)
	if err := r.resolve(t.Context()); err != nil || r.alone == nil || r.etcd.Endpoints[0] != conf.DefaultEtcdEndpoint {
		t.Errorf("resolved to %v, %v", r.etcd, err)
	}
	err := r.explain(context.DeadlineExceeded)
	var exit *exitError
	if !errors.As(err, &exit) || exit.code != exitNotReached || !strings.Contains(err.Error(), gone) || !strings.Contains(err.Error(), "give --etcd-endpoints") {
		t.Errorf("explained as %v", err)
	}
}

// TestEtcdRights: an etcd that answers no is explained, and is not "not reached".
func TestEtcdRights(t *testing.T) {
	s, c := store(t)
	ctx := t.Context()
	grant := func(role string, perm clientv3.PermissionType) {
		if _, err := c.RoleAdd(ctx, role); err != nil {
			t.Fatal(err)
		}
		if _, err := c.RoleGrantPermission(ctx, role, conf.DefaultEtcdPrefix+"/", clientv3.GetPrefixRangeEnd(conf.DefaultEtcdPrefix+"/"), perm); err != nil {
			t.Fatal(err)
		}
	}
	grant("look", clientv3.PermissionType(clientv3.PermRead))
	if _, err := c.RoleAdd(ctx, "nothing"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.RoleAdd(ctx, "root"); err != nil {
		t.Fatal(err)
	}
	for user, role := range map[string]string{"root": "root", "looker": "look", "nobody": "nothing"} {
		if _, err := c.UserAdd(ctx, user, "secret"); err != nil {
			t.Fatal(err)
		}
		if _, err := c.UserGrantRole(ctx, user, role); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.AuthEnable(ctx); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	secret, wrong := file("password", "secret"), file("wrong", "wrong")
	as := func(user, password string) string {
		return " --etcd-username " + user + " --etcd-password-file " + password
	}
	check(t, []string{"--etcd-endpoints", s.Endpoint}, []wants{
		{"leases", 1, "", "--etcd-username"},
		{"leases" + as("looker", wrong), 1, "", "--etcd-password-file"},
		{"leases" + as("nobody", secret), 1, "", `user "nobody" lacks rights on the prefix`},
		{"leases" + as("looker", secret), 0, "10.5.1.0/24", ""},
		{"map" + as("looker", secret), 0, ".##.", ""},
		{"history -f" + as("nobody", secret), 1, "", "lacks rights"},
		{"reserve 10.5.3.0/24 n3" + as("looker", secret), 1, "", "etcdctl role grant-permission"},
		{"config set {\"Network\":\"10.5.0.0/16\"} --yes" + as("looker", secret), 1, "", "lacks rights"},
		{"release n1 --machine-is-off" + as("looker", secret), 1, "", "lacks rights"},
		{"init --network 10.5.0.0/16" + as("nobody", secret), 1, "", "lacks rights"},
		{"reserve 10.5.3.0/24 n3" + as("root", secret), 0, "is reserved", ""},
	})
	// The daemon's way, with the file that only root can read.
	socket := access(t, api.EtcdAccess{UID: "uid-n1", Endpoints: []string{s.Endpoint}, Prefix: conf.DefaultEtcdPrefix, Username: "looker", PasswordFile: secret})
	check(t, nil, []wants{{"leases --socket " + socket, 0, "n1 (here)", ""}})
}

// TestCompletion offers what the daemon knows, and nothing without one.
func TestCompletion(t *testing.T) {
	for args, want := range map[string]string{"history": "n2\t10.5.35.0/24", "release": "10.5.34.0/24\tnode n1", "reserve 10.5.1.0/24": "n1\t10.5.34.0/24"} {
		_, out, _ := ran(t.Context(), append(append([]string{"__complete", "--socket", serve(t, healthy())}, strings.Fields(args)...), "")...)
		if !strings.Contains(out, want) {
			t.Errorf("%s: offered %q, want %q", args, out, want)
		}
	}
	if _, out, _ := ran(t.Context(), "__complete", "--socket", "/no/such.sock", "history", ""); strings.Contains(out, "n1") {
		t.Errorf("without a daemon: %q", out)
	}
}
