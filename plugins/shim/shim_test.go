package shim_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/plugins/shim"
)

// short makes every limit short; a test that waits for one sets it.
func short() shim.Limits {
	return shim.Limits{
		Add: 300 * time.Millisecond, AddDial: 100 * time.Millisecond, AskDial: 50 * time.Millisecond,
		Del: 300 * time.Millisecond, DelDial: 50 * time.Millisecond,
		Status: 100 * time.Millisecond, Pause: 5 * time.Millisecond,
	}
}

// patient never runs into a limit in a test that passes.
func patient() shim.Limits {
	const long = 20 * time.Second
	return shim.Limits{Add: long, AddDial: long, AskDial: long, Del: long, DelDial: long, Status: long, Pause: 5 * time.Millisecond}
}

func args(socket string) *skel.CmdArgs {
	return &skel.CmdArgs{
		ContainerID: "c1", Netns: "/run/netns/c1", IfName: "eth0", Args: "IgnoreUnknown=1", Path: "/opt/cni/bin",
		StdinData: fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"net","type":"tenure","tenure":{"socket":%q}}`, socket),
	}
}

// verb calls one verb and returns what was printed and the error.
func verb(t *testing.T, s *shim.Shim, name string, a *skel.CmdArgs) (string, *types.Error) {
	t.Helper()
	var out bytes.Buffer
	s.Out = &out
	if s.API == "" {
		s.API = api.PathCNI
	}
	f := s.Funcs()
	err := map[string]func(*skel.CmdArgs) error{
		"add": f.Add, "del": f.Del, "check": f.Check, "gc": f.GC, "status": f.Status,
	}[name](a)
	if err == nil {
		return out.String(), nil
	}
	var e *types.Error
	if !errors.As(err, &e) {
		t.Fatalf("%s: %T %v is no CNI error", name, err, err)
	}
	return out.String(), e
}

// queued drains the socket's queue and returns what was in it.
func queued(t *testing.T, socket string) []api.Queued {
	t.Helper()
	var all []api.Queued
	if err := api.Drain(api.QueueDir(socket), func(q api.Queued) error {
		all = append(all, q)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestAddPrintsTheResultVerbatim(t *testing.T) {
	socket := newSocket(t)
	const result = `{"cniVersion":"1.1.0","ips":[{"address":"10.5.1.2/24"}]}`
	d := listen(t, socket, say(`{"result":`+result+`}`))
	out, e := verb(t, &shim.Shim{Limits: patient()}, "add", args(socket))
	if e != nil || out != result {
		t.Fatalf("got %q, %v", out, e)
	}
	if diff := cmp.Diff([]string{"/v1/cni/add c1"}, d.seen()); diff != "" {
		t.Fatal(diff)
	}
}

func TestEveryVerbHasItsPath(t *testing.T) {
	for _, path := range []string{api.PathCNI, api.PathIPAM} {
		for _, name := range []string{"del", "check", "gc", "status"} {
			socket := newSocket(t)
			d := listen(t, socket, say(`{}`))
			a := args(socket)
			if path == api.PathIPAM {
				a.StdinData = fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"net","type":"bridge","tenure":{"socket":"/nowhere"},
					"ipam":{"type":"tenure-ipam","tenure":{"socket":%q}}}`, socket)
			}
			out, e := verb(t, &shim.Shim{API: path, Limits: patient()}, name, a)
			if e != nil || out != "" {
				t.Errorf("%s%s: %q, %v", path, name, out, e)
			}
			if diff := cmp.Diff([]string{path + name + " c1"}, d.seen()); diff != "" {
				t.Error(diff)
			}
		}
	}
}

func TestDaemonsErrorIsPassedOn(t *testing.T) {
	socket := newSocket(t)
	listen(t, socket, say(`{"error":{"code":51,"msg":"fenced","details":"since noon"}}`))
	for _, name := range []string{"add", "del", "check", "gc", "status"} {
		out, e := verb(t, &shim.Shim{Limits: patient()}, name, args(socket))
		if diff := cmp.Diff(&types.Error{Code: 51, Msg: "fenced", Details: "since noon"}, e); diff != "" || out != "" {
			t.Errorf("%s: %q %s", name, out, diff)
		}
	}
	if all := queued(t, socket); len(all) != 0 {
		t.Errorf("an answered DEL was queued: %v", all)
	}
}

// TestNoDaemon is row G1: nothing listens, with and without a stale socket.
func TestNoDaemon(t *testing.T) {
	for _, c := range []struct {
		verb string
		code uint
	}{{"add", api.CodeTryAgain}, {"check", api.CodeTryAgain}, {"gc", api.CodeTryAgain}, {"status", api.CodeNotReady}} {
		socket := newSocket(t)
		out, e := verb(t, &shim.Shim{Limits: short()}, c.verb, args(socket))
		if e == nil || e.Code != c.code || out != "" {
			t.Fatalf("%s: %q, %v", c.verb, out, e)
		}
		if !strings.Contains(e.Msg, socket) || !strings.Contains(e.Details, "journalctl -u tenured") {
			t.Errorf("%s: %q / %q does not say where to look", c.verb, e.Msg, e.Details)
		}
	}
}

// TestAddWaitsForTheDaemon is the other half of G1: it comes up late.
func TestAddWaitsForTheDaemon(t *testing.T) {
	socket := newSocket(t)
	began := make(chan struct{})
	done := make(chan *types.Error, 1)
	go func() {
		close(began)
		_, e := verb(t, &shim.Shim{Limits: patient()}, "add", args(socket))
		done <- e
	}()
	<-began
	select {
	case e := <-done:
		t.Fatalf("ADD did not wait: %v", e)
	case <-time.After(60 * time.Millisecond):
	}
	listen(t, socket, say(`{"result":{}}`))
	if e := <-done; e != nil {
		t.Fatal(e)
	}
}

// TestSilentDaemon is row F3: every verb ends.
func TestSilentDaemon(t *testing.T) {
	socket := newSocket(t)
	listen(t, socket, silence)
	for name, code := range map[string]uint{"add": api.CodeTryAgain, "check": api.CodeTryAgain, "gc": api.CodeTryAgain, "status": api.CodeNotReady} {
		_, e := verb(t, &shim.Shim{Limits: short()}, name, args(socket))
		if e == nil || e.Code != code || !strings.Contains(e.Msg, "did not answer in time") {
			t.Errorf("%s: %v", name, e)
		}
	}
	if _, e := verb(t, &shim.Shim{Limits: short()}, "del", args(socket)); e != nil {
		t.Errorf("del: %v", e)
	}
	if all := queued(t, socket); len(all) != 1 {
		t.Errorf("queued %v", all)
	}
}

func TestUnusableAnswers(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"garbage":  say(`<html>`),
		"refusal":  func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) },
		"hang up":  func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"empty":    say(``),
		"no value": say(`{}`),
	} {
		t.Run(name, func(t *testing.T) {
			socket := newSocket(t)
			d := listen(t, socket, answer)
			out, e := verb(t, &shim.Shim{Limits: patient()}, "add", args(socket))
			if e == nil || e.Code != api.CodeTryAgain || out != "" || !strings.Contains(e.Msg, socket) {
				t.Errorf("add: %q, %v", out, e)
			}
			if n := len(d.seen()); n != 1 {
				t.Errorf("a call that the daemon had seen was sent %d times", n)
			}
			if _, e := verb(t, &shim.Shim{Limits: patient()}, "del", args(socket)); e != nil {
				t.Errorf("del: %v", e)
			}
			want := 1
			if name == "no value" { // to a DEL that is success
				want = 0
			}
			if all := queued(t, socket); len(all) != want {
				t.Errorf("queued %v, want %d", all, want)
			}
		})
	}
}

// TestDelIsQueued is row F1: the daemon is down, the DEL is on disk, once.
func TestDelIsQueued(t *testing.T) {
	socket := newSocket(t)
	a := args(socket)
	a.Netns = "" // row D2: the namespace has gone
	for range 2 {
		if out, e := verb(t, &shim.Shim{Limits: short()}, "del", a); e != nil || out != "" {
			t.Fatalf("%q, %v", out, e)
		}
	}
	want := []api.Queued{{API: api.PathCNI, Request: api.Request{
		ContainerID: "c1", IfName: "eth0", Args: "IgnoreUnknown=1", Path: "/opt/cni/bin", Config: a.StdinData,
	}}}
	if diff := cmp.Diff(want, queued(t, socket)); diff != "" {
		t.Fatal(diff)
	}
	if diff := cmp.Diff([]api.Queued(nil), queued(t, socket)); diff != "" {
		t.Fatal("drained twice: ", diff)
	}
}

// TestDelQueueRefuses: the disk takes nothing. Without a daemon that is an
// error, so that the runtime repeats the DEL; a late daemon still gets it.
func TestDelQueueRefuses(t *testing.T) {
	block := func(socket string) {
		if err := os.WriteFile(api.QueueDir(socket), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	socket := newSocket(t)
	block(socket)
	_, e := verb(t, &shim.Shim{Limits: short()}, "del", args(socket))
	if e == nil || e.Code != api.CodeTryAgain || !strings.Contains(e.Details, "cannot be queued") {
		t.Fatalf("down: %v", e)
	}

	socket = newSocket(t)
	block(socket)
	limits := patient()
	limits.DelDial = 5 * time.Millisecond
	done := make(chan *types.Error, 1)
	go func() {
		_, e := verb(t, &shim.Shim{Limits: limits}, "del", args(socket))
		done <- e
	}()
	select {
	case e := <-done:
		t.Fatalf("DEL did not wait for the daemon: %v", e)
	case <-time.After(60 * time.Millisecond):
	}
	d := listen(t, socket, say(`{}`))
	if e := <-done; e != nil || len(d.seen()) != 1 {
		t.Fatalf("late: %v, seen %v", e, d.seen())
	}
}

func TestArgumentsAreChecked(t *testing.T) {
	socket := newSocket(t)
	d := listen(t, socket, say(`{"result":{}}`))
	for name, c := range map[string]struct {
		change  func(*skel.CmdArgs)
		add     uint
		del     uint
		mention string
	}{
		"long id":        {func(a *skel.CmdArgs) { a.ContainerID = strings.Repeat("a", 129) }, 4, 4, "CNI_CONTAINERID"},
		"long netns":     {func(a *skel.CmdArgs) { a.Netns = "/" + strings.Repeat("a", 4095) }, 4, 0, "CNI_NETNS"},
		"pattern":        {func(a *skel.CmdArgs) { a.IfName = "eth%d" }, 4, 0, "CNI_IFNAME"},
		"not JSON":       {func(a *skel.CmdArgs) { a.StdinData = []byte("{") }, 6, 6, "decode"},
		"section a word": {func(a *skel.CmdArgs) { a.StdinData = []byte(`{"name":"n","tenure":"x"}`) }, 7, 7, `"tenure"`},
		"socket a number": {func(a *skel.CmdArgs) {
			a.StdinData = []byte(`{"name":"n","tenure":{"socket":5}}`)
		}, 7, 7, "socket"},
		"socket relative": {func(a *skel.CmdArgs) {
			a.StdinData = []byte(`{"name":"n","tenure":{"socket":"t.sock"}}`)
		}, 7, 7, "absolute"},
		"unknown field": {func(a *skel.CmdArgs) {
			a.StdinData = fmt.Appendf(nil, `{"name":"n","tenure":{"socket":%q,"sockett":1}}`, socket)
		}, 7, 0, "sockett"},
	} {
		t.Run(name, func(t *testing.T) {
			for verbName, want := range map[string]uint{"add": c.add, "del": c.del} {
				before := len(d.seen())
				a := args(socket)
				c.change(a)
				_, e := verb(t, &shim.Shim{Limits: patient()}, verbName, a)
				switch {
				case want == 0 && e != nil:
					t.Errorf("%s: %v", verbName, e)
				case want != 0 && (e == nil || e.Code != want || !strings.Contains(e.Error(), c.mention)):
					t.Errorf("%s: want code %d and %q, got %+v", verbName, want, c.mention, e)
				case want != 0 && len(d.seen()) != before:
					t.Errorf("%s reached the daemon", verbName)
				}
			}
		})
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(socket), "del")); err == nil {
		t.Error("a refused DEL was queued")
	}
}
