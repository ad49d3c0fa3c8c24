package fault

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// mutant is the product broken in one way, and the schedule that shows it.
type mutant struct {
	name  string
	edits []edit
	by    string // the name of a schedule
	says  string // is in what is found, where no promise of P1 or P2 is broken
}

// edit replaces text that is in the file exactly once.
type edit struct{ file, old, new string }

// mutants are all ways in which the product is broken on purpose.
func mutants() []mutant {
	const (
		txn, cycle, clock, decide = "daemon/lease/txn.go", "daemon/lease/cycle.go", "daemon/lease/clock.go", "daemon/lease/decide.go"
		hold, move, acquire       = "daemon/lease/hold.go", "daemon/lease/move.go", "daemon/lease/acquire.go"
		release, fence, program   = "daemon/lease/release.go", "daemon/fence/fence.go", "daemon/fence/program.go"
		term                      = "daemon/lease/term.go"
	)
	proof := edit{cycle, `v.err = fmt.Errorf("prove %s: %w", h.subnets, err)
		return v`, `v.deadline, v.proven = Deadline(t0, ttl), true
		return v`}
	return []mutant{
		{"put-without-compare", []edit{{txn, `		cmps: append(free(k, c.Subnets, seen), absent(k.Settle()),
			asRead(k.Reservation(c.Subnets), seen.Reservations[c.ownerKey()].ModRevision)),
`, ""}}, "join", ""},
		{"put-without-lease", []edit{{txn, `clientv3.OpPut(k.Subnet(s), r.encode(), clientv3.WithLease(l)),`, `clientv3.OpPut(k.Subnet(s), r.encode()),`}}, "join", ""},
		{"deadline-from-receipt", []edit{{cycle, `v.deadline = Deadline(t0, ttl)`, `v.deadline = Deadline(clock(), ttl)`}}, "slow", ""},
		{"deadline-relative", []edit{{hold, `e.fence.Arm(gen, v.deadline)`, `e.fence.Arm(gen, e.cfg.Clock()+v.holding.ttl-Margin(v.holding.ttl))`}}, "slow", ""},
		{"margin-negative", []edit{{clock, `max(t0, t0+ttl-Margin(ttl))`, `max(t0, t0+ttl+2*Margin(ttl))`}}, "away", ""},
		{"no-proof", []edit{{cycle, `v.lost = h.contradicted(v.entry); v.lost != ""`, `v.lost = ""; h.contradicted(v.entry) != "" && false`},
			{cycle, `case !resp.Succeeded:`, `case !resp.Succeeded && false:`}}, "blind", ""},
		{"keep-alive-as-proof", []edit{proof}, "unproven", ""},
		{"resume-by-uid-alone", []edit{{decide, `return e.Tenant().Boot == me.boot })`, `return true })`}}, "clone", ""},
		{"no-settle", []edit{{decide, `settling := s.Settle.ModRevision != 0`, `settling := false`},
			{txn, `append(free(k, c.Subnets, seen), absent(k.Settle()),`, `append(free(k, c.Subnets, seen),`}}, "wiped", ""},
		{"reassert-without-absence", []edit{{txn, `		cmps: free(h.keys, h.subnets, seen),
		then: write(h.keys, h.subnets, l, h.record, o),`, `		then: write(h.keys, h.subnets, l, h.record, o),`}}, "wiped", ""},
		{"unknown-move-revoked", []edit{{move, `		e.log.Warn("whether the key has moved`, `		e.dropLease(ctx, e.moving.lease)
		e.log.Warn("whether the key has moved`}}, "unanswered", ""},
		{"move-without-cut", []edit{{move, `	if err := e.cut(Deadline(t0, got)); err != nil {`, `	_ = t0
	if err := error(nil); err != nil {`}}, "move", ""},
		{"any-leader", []edit{{term, `return !e.terms.behind && (e.underItsLeader(h) || e.withoutSpace(h.ttl))`, `return true`},
			{term, `if e.terms.same(t.lease) || e.terms.behind {`, `if true {`}}, "followed", ""},
		{"release-deletes", []edit{{release, `	if machineIsOff {
		return h.leave(o), nil`, `	if machineIsOff || s != nil {
		return h.leave(o), nil`}}, "released", ""},
		{"epoch-stays", []edit{{acquire, `return max(owner.Epoch+1, seen+1, now.Unix())`, `return max(owner.Epoch, seen, 1)`}}, "heir", ""},
		{"loss-leaves-open", []edit{{hold, `if err := e.fence.Close(); err != nil {`, `if err := error(nil); err != nil {`}}, "deleted", ""},
		{"set-opens", []edit{{fence, `	if subnets != f.live.subnets {
		f.cut(0)
	}`, `	if subnets != f.live.subnets {
		f.live.set(1 << 62)
	}`}}, "slow-heir", ""},
		{"fence-never-closes", []edit{{program, `asm.JGE.Reg(regNow, asm.R1, "drop"),`, ``}}, "away", ""},
		{"token-unchecked", []edit{{program, `	if d == inward {
		p = append(p, judgeToken(m)...)`, `	if d == inward && m == nil {
		p = append(p, judgeToken(m)...)`}}, "stopped", ""},
		{"ends-without-etcd", []edit{{hold, `	e.unproven(t, err)
	return min(`, `	panic(err)
	return min(`}}, "away", "ended by itself"},
		{"releases-nothing", []edit{{"ipam/ledger.go", `	l.keep(st, "a release is not on disk yet", "key", k)
`, ""}}, "passing", "addresses are in use"},
		{"sees-the-store-before", []edit{{"daemon/lease/observe.go", `if changed || left ||`, `if changed || left && false ||`}}, "slept", "has not programmed"},
	}
}

// named are the schedules that show a mutant quickly. The product comes through
// all of them: TestNamed.
func named() []schedule {
	s := time.Second
	at := func(at, long time.Duration, kind, on string) fault {
		return fault{At: at, For: long, Kind: kind, On: on}
	}
	return []schedule{
		// All join at once, and nothing else happens.
		{Name: "join", Time: s, Nodes: 5, Members: 1, Pool: 5},
		// The last proof is slow, and no other comes for longer than a lease.
		{Name: "slow", Time: 15 * s, Nodes: 3, Members: 1, Pool: 3, Faults: []fault{
			at(s, 13*s, "last-proof-slow", "n2"), at(2*s, 12*s, "newcomer", cloneName)}},
		// A subnet is taken away, and the next one comes with slow answers.
		{Name: "slow-heir", Time: 14 * s, Nodes: 2, Members: 1, Pool: 4, Faults: []fault{
			at(s, 12*s, "answers-slow", "n2"), at(2*s, s, "released", "n2")}},
		// Two nodes are away for longer than their leases, and somebody waits.
		{Name: "away", Time: 11 * s, Nodes: 3, Members: 1, Pool: 3, Faults: []fault{
			at(s, 9*s, "daemon-hung", "n1"), at(s, 9*s, "etcd-away", "n3"), at(2*s, 8*s, "newcomer", cloneName)}},
		{Name: "heir", Time: 10 * s, Nodes: 2, Members: 1, Pool: 2, Faults: []fault{
			at(s, 9*s, "daemon-dead", "n1"), at(2*s, 8*s, "newcomer", cloneName)}},
		// A key is written over, which nobody tells its holder, and then goes.
		{Name: "blind", Time: 14 * s, Nodes: 3, Members: 1, Pool: 3, Faults: []fault{
			at(s, 12*s, "events-lost", "n2"), at(2*s, 7*s, "foreign-write", "n2"), at(6*s, 7*s, "newcomer", cloneName)}},
		// The same, and no proof is answered.
		{Name: "unproven", Time: 14 * s, Nodes: 3, Members: 1, Pool: 3, Faults: []fault{
			at(s, 12*s, "proofs-lost", "n2"), at(2*s, 7*s, "foreign-write", "n2"), at(6*s, 7*s, "newcomer", cloneName)}},
		// A daemon sleeps while the store is wiped, and its overlay closes.
		{Name: "slept", Time: 10 * s, Nodes: 3, Members: 1, Pool: 12, Faults: []fault{
			at(s, 8*s, "daemon-hung", "n1"), at(2*s, s, "store-wiped", ""), at(4*s, s, "state-lost", "n3")}},
		// Pods come and go.
		{Name: "passing", Time: 6 * s, Nodes: 2, Members: 1, Pool: 2},
		{Name: "clone", Time: 8 * s, Nodes: 3, Members: 1, Pool: 6, Faults: []fault{at(s, 6*s, "state-cloned", "n1")}},
		// The store is wiped while a holder is cut off, and somebody new comes.
		{Name: "wiped", Time: 12 * s, Nodes: 3, Members: 1, Pool: 3, Faults: []fault{
			at(2*s, 9*s, "etcd-away", "n1"), at(2100*time.Millisecond, s/2, "store-wiped", ""), at(3500*time.Millisecond, 8*s, "newcomer", cloneName)}},
		// A key moves to a shorter lease, its holder is not told and is cut off.
		{Name: "move", Time: 24 * s, Nodes: 3, Members: 1, Pool: 3, Faults: []fault{
			at(s, 22*s, "move-lost", "n2"), at(2*s, 21*s, "newcomer", cloneName)}},
		// The same, and it goes on without an answer.
		{Name: "unanswered", Time: 18 * s, Nodes: 3, Members: 1, Pool: 3, Faults: []fault{
			at(s, 15*s, "move-unanswered", "n2"), at(2*s, 15*s, "newcomer", cloneName)}},
		// The leader of etcd is followed by another one and goes on. Two nodes are not
		// told that their keys have gone, and somebody waits.
		{Name: "followed", Time: 20 * s, Nodes: 4, Members: 3, Pool: 4, Faults: []fault{
			at(s, 6*s, "leader-hung", ""), at(8*s, 11*s, "events-lost", "n2"), at(8*s, 11*s, "events-lost", "n4"), at(9*s, 10*s, "newcomer", cloneName)}},
		// A subnet is released by force whose holder is cut off.
		{Name: "released", Time: 9 * s, Nodes: 3, Members: 1, Pool: 3, Faults: []fault{
			at(s, 7*s, "newcomer", cloneName), at(2500*time.Millisecond, 6*s, "etcd-away", "n1"), at(3*s, s, "released", "n1")}},
		// A key is deleted by hand, and somebody waits for it.
		{Name: "deleted", Time: 8 * s, Nodes: 3, Members: 1, Pool: 3, Faults: []fault{
			at(s, 6*s, "newcomer", cloneName), at(3*s, 5*s, "key-deleted", "n1")}},
		// A guest is paused with all its clocks, and its subnet goes to another.
		{Name: "stopped", Time: 14 * s, Nodes: 3, Members: 1, Pool: 3, Faults: []fault{
			at(s, 11*s, "clocks-stopped", "n1"), at(2*s, 10*s, "newcomer", cloneName)}},
	}
}

func scheduleNamed(name string) (schedule, bool) {
	for _, s := range named() {
		if s.Name == name {
			return s, true
		}
	}
	return schedule{}, false
}

// TestMutants breaks the product on purpose and makes sure that a run finds it:
// one way in CI, all of them where TENURE_MUTANTS is "all", or those it names.
func TestMutants(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root and network namespaces")
	}
	wanted := os.Getenv("TENURE_MUTANTS")
	if wanted == "" {
		wanted = "resume-by-uid-alone"
	}
	var table strings.Builder
	tried := 0
	for _, m := range mutants() {
		if wanted != "all" && !strings.Contains(","+wanted+",", ","+m.name+",") {
			continue
		}
		tried++
		t.Run(m.name, func(t *testing.T) {
			program := m.build(t)
			s, ok := scheduleNamed(m.by)
			if !ok {
				t.Fatalf("no schedule is called %s", m.by)
			}
			r := &run{s: s, program: program, patience: 2 * ttl, whole: m.says != ""}
			v := conductWith(t, r)
			broken := v.broken(m.says)
			if len(broken) == 0 {
				t.Errorf("nobody noticed it: %s", v)
				return
			}
			what, _, _ := strings.Cut(broken[0].text, "\n")
			line := fmt.Sprintf("%-24s %-10s %5.1fs  %s", m.name, m.by, broken[0].at.Seconds(), what)
			t.Log(line)
			fmt.Fprintln(&table, line)
		})
	}
	if tried == 0 {
		t.Fatalf("no mutant is called %s", wanted)
	}
	t.Logf("mutant, found by schedule, after, what:\n%s", table.String())
}

// broken is what was found that breaks a promise, or that says what it should:
// not that the run could not do something, nor that a broken cluster was not
// well.
func (v verdict) broken(says string) []violation {
	var all []violation
	for _, f := range v.found {
		if says == "" && f.rule != "" || says != "" && strings.Contains(f.text, says) {
			all = append(all, f)
		}
	}
	return all
}

// TestNamed lets the product itself go through the schedules by which mutants are
// found: TENURE_SCHEDULE names one, else it is the one of CI's mutant.
func TestNamed(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root and network namespaces")
	}
	wanted := os.Getenv("TENURE_SCHEDULE")
	if wanted == "" {
		wanted = "clone"
	}
	tried := 0
	for _, s := range named() {
		if wanted != "all" && wanted != s.Name {
			continue
		}
		tried++
		t.Run(s.Name, func(t *testing.T) {
			if v := conduct(t, s); v.ok() {
				t.Log(v)
			} else {
				t.Error(v)
			}
		})
	}
	if tried == 0 {
		t.Fatalf("no schedule is called %s", wanted)
	}
}

// TestMutantsApply: each edit fits exactly once, and each schedule exists.
func TestMutantsApply(t *testing.T) {
	t.Parallel()
	for _, m := range mutants() {
		if _, err := m.overlay(t.TempDir()); err != nil {
			t.Error(err)
		}
		if _, ok := scheduleNamed(m.by); !ok {
			t.Errorf("%s: no schedule is called %s", m.name, m.by)
		}
	}
	if n := len(mutants()); n < 12 {
		t.Errorf("there are %d mutants", n)
	}
}

// root is the checkout.
func root() (string, error) {
	dir, err := os.Getwd()
	return filepath.Join(dir, "..", ".."), err
}

// overlay writes the broken files and the list that go build wants of them.
func (m mutant) overlay(dir string) (list string, err error) {
	top, err := root()
	if err != nil {
		return "", err
	}
	texts := map[string][]byte{}
	for _, e := range m.edits {
		path := filepath.Join(top, e.file)
		text := texts[path]
		if text == nil {
			if text, err = os.ReadFile(path); err != nil {
				return "", err
			}
		}
		if n := bytes.Count(text, []byte(e.old)); n != 1 {
			return "", fmt.Errorf("mutant %s: %q is %d times in %s, want once", m.name, e.old, n, e.file)
		}
		texts[path] = bytes.Replace(text, []byte(e.old), []byte(e.new), 1)
	}
	var doc struct{ Replace map[string]string }
	doc.Replace = map[string]string{}
	for path, text := range texts {
		to := filepath.Join(dir, strings.ReplaceAll(strings.TrimPrefix(path, top), "/", "_"))
		if err := os.WriteFile(to, text, 0o644); err != nil {
			return "", err
		}
		doc.Replace[path] = to
	}
	b, err := json.Marshal(doc)
	if err != nil {
		return "", err
	}
	list = filepath.Join(dir, "overlay.json")
	return list, os.WriteFile(list, b, 0o644)
}

// build builds the broken programs and returns the path of tenured.
func (m mutant) build(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	list, err := m.overlay(dir)
	if err != nil {
		t.Fatal(err)
	}
	top, err := root()
	if err != nil {
		t.Fatal(err)
	}
	ctx := cluster.Context(t, 5*time.Minute)
	for _, program := range []string{"tenured", "tenurectl"} {
		if err := build(ctx, top, list, dir, program); err != nil {
			t.Fatalf("mutant %s: %v", m.name, err)
		}
	}
	return filepath.Join(dir, "tenured")
}

func build(ctx context.Context, top, overlay, into, program string) error {
	if program == "tenurectl" { // which only few mutants change
		b, err := os.ReadFile(overlay)
		if err == nil && !strings.Contains(string(b), "release.go") {
			bin, err := lab.FindBin()
			if err != nil {
				return err
			}
			return os.Symlink(filepath.Join(bin, program), filepath.Join(into, program))
		}
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-overlay", overlay, "-o", into+"/", "./daemon/"+program)
	cmd.Dir, cmd.Env = top, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", program, err, out)
	}
	return nil
}
