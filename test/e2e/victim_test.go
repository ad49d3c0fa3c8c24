package e2e

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// way is how a daemon comes to a place.
type way string

const (
	// asking: in each cycle, after t0 and before the fence is armed with it.
	asking way = "asking"
	// between: in each cycle, elsewhere.
	between way = "between"
	// starting: when a daemon without a subnet takes one.
	starting way = "starting"
	// moving: when the config asks for another LeaseTTL.
	moving way = "moving"
	// leaving: after tenurectl leave.
	leaving way = "leaving"
	// returning: when the store has forgotten what a node holds.
	returning way = "returning"
)

// ways are those of the places that are not asking. A place that is new in the
// source is asking until it stands here, and must then be passed in each cycle.
func ways() map[string]way {
	return map[string]way{
		"before t0":                       between,
		"after the fence was armed":       between,
		"before the acquire":              starting,
		"after the acquire":               starting,
		"before the subnet is set":        starting,
		"after the subnet was set":        starting,
		"before the fence is cut":         moving,
		"after the fence was cut":         moving,
		"before the key moves":            moving,
		"after the key moved":             moving,
		"before the old lease is revoked": moving,
		"before the fence is closed":      leaving,
		"before the key is deleted":       leaving,
		"after the key was deleted":       leaving,
		"before the key is put back":      returning,
		"after the key was put back":      returning,
	}
}

// armed is where a daemon can be held after it has written the deadline.
const armed = "after the fence was armed"

// placesBy are the places to which one of these ways leads.
func placesBy(t *testing.T, these ...way) (places []string) {
	t.Helper()
	for _, where := range allPlaces(t) {
		if slices.Contains(these, wayTo(where)) {
			places = append(places, where)
		}
	}
	return places
}

func wayTo(place string) way {
	if w, known := ways()[place]; known {
		return w
	}
	return asking
}

// allPlaces reads out of the lease engine's source where a daemon can be
// stopped.
func allPlaces(t *testing.T) []string {
	t.Helper()
	all := placesIn(t, "../../daemon/lease/*.go")
	for where := range ways() {
		if !slices.Contains(all, where) {
			t.Errorf("the engine has no place %q any more", where)
		}
	}
	return all
}

// placesIn reads the places out of source files, sorted.
func placesIn(t *testing.T, patterns ...string) (all []string) {
	t.Helper()
	for _, pattern := range patterns {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("no source %s: %v", pattern, err)
		}
		for _, name := range files {
			if !strings.HasSuffix(name, "_test.go") {
				all = append(all, placesOf(t, name)...)
			}
		}
	}
	slices.Sort(all)
	if unique := slices.Compact(slices.Clone(all)); len(unique) != len(all) {
		t.Errorf("two places of one name among %q", all)
	}
	return slices.Compact(all)
}

func placesOf(t *testing.T, source string) (all []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), source, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if where, ok := placeIn(n); ok {
			all = append(all, where)
		}
		return true
	})
	return all
}

// placeIn takes the name out of a call of the hook: at("…").
func placeIn(n ast.Node) (string, bool) {
	call, ok := n.(*ast.CallExpr)
	if !ok || len(call.Args) != 1 {
		return "", false
	}
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || method.Sel.Name != "at" {
		return "", false
	}
	literal, ok := call.Args[0].(*ast.BasicLit)
	if !ok {
		return "", false
	}
	where, err := strconv.Unquote(literal.Value)
	return where, err == nil
}

// victim is a node whose daemon is stopped at one place, and what it may lose.
type victim struct {
	place string
	way   way
	node  *lab.Node
	rival *lab.Node
	// old is its subnet; the rival gets that, and the victim spare.
	old, spare netip.Prefix
	triggers   string // directory

	pod  *lab.Pod      // nil while starting
	flow *cluster.Flow // from the pod to the observer
	ping *lab.Pinger   // from the observer to the pod
	add  chan answer   // of the ADD that was queued

	stopped time.Duration // CLOCK_BOOTTIME of the stop
	limit   time.Duration // what F may never exceed, for what was known then

	mu    sync.Mutex
	fence *cluster.Fence
	seen  []reading // what F was, each change once
	mark  int       // length of seen when it was stopped
}

// reading is what the kernel had.
type reading struct {
	at, deadline time.Duration
	subnet       netip.Prefix
}

func (v *victim) String() string { return fmt.Sprintf("%s, stopped %s", v.node.Host, v.place) }

// look reads the fence, if the daemon has one yet.
func (v *victim) look(t *testing.T) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.fence == nil {
		return
	}
	now := cluster.BootTime()
	subnet, deadline, err := v.fence.Read()
	if err != nil {
		t.Errorf("%s: %v", v, err)
		return
	}
	if n := len(v.seen); n == 0 || v.seen[n-1].deadline != deadline || v.seen[n-1].subnet != subnet {
		v.seen = append(v.seen, reading{now, deadline, subnet})
	}
}

// since are the readings from the one at the stop on.
func (v *victim) since() []reading {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.seen[v.mark:])
}

// arrange makes the daemon stop at the place when it next comes there.
func (v *victim) arrange(t *testing.T, place string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(v.triggers, place), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// isStopped tells whether the kernel has stopped the daemon.
func (v *victim) isStopped() bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", v.node.Pid()))
	if err != nil {
		return false
	}
	// The state follows the name, which is in parentheses.
	return strings.HasPrefix(string(text[strings.LastIndexByte(string(text), ')')+1:]), " T ")
}

// clockGrain is how far a file's time may lie behind the clock.
const clockGrain = 10 * time.Millisecond

// found notes all about a victim that has been seen to stand still. It stopped
// when it took its trigger away, which the directory's time shows.
func (v *victim) found(ctx context.Context, t *testing.T, s *cluster.Store) {
	t.Helper()
	info, err := os.Stat(v.triggers)
	if err != nil {
		t.Fatal(err)
	}
	v.stopped = cluster.BootTime() - time.Since(info.ModTime()) + clockGrain
	v.mu.Lock()
	if v.fence == nil {
		v.fence = cluster.OpenFence(t, v.node.Pid())
	}
	v.mu.Unlock()
	v.look(t)
	v.mu.Lock()
	v.mark = len(v.seen) - 1
	v.mu.Unlock()
	v.limit = v.stopped
	if ttl := v.granted(ctx, t, s); ttl > 0 {
		v.limit += ttl - max(ttl/10, time.Second)
	}
}

// granted is the length of the lease that the key hangs on, or was granted for
// it in a store that has forgotten it.
func (v *victim) granted(ctx context.Context, t *testing.T, s *cluster.Store) time.Duration {
	t.Helper()
	_, lease, held := s.Holder(ctx, v.old.String())
	if !held && v.way == returning {
		return lossTTL
	}
	if !held {
		return 0
	}
	l, err := s.TimeToLive(ctx, lease)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(l.GrantedTTL) * time.Second
}

// still says whether the fence is what it was at the stop, which is within the
// limit.
func (v *victim) still() error {
	if all := v.since(); len(all) > 1 {
		return fmt.Errorf("%s: while it stood still F of %s became %s", v, all[1].subnet, all[1].deadline)
	}
	return v.within()
}

// within says whether F of the old subnet has stayed within the limit.
func (v *victim) within() error {
	for _, r := range v.since() {
		if r.subnet == v.old && r.deadline > v.limit {
			return fmt.Errorf("%s: F of %s is %s at %s: %s more than its lease allows, as known when it stopped at %s",
				v, r.subnet, r.deadline, r.at, r.deadline-v.limit, v.stopped)
		}
	}
	return nil
}

// goOn lets the daemon run.
func (v *victim) goOn(t *testing.T) {
	t.Helper()
	signal(t, v.node, unix.SIGCONT)
}

// answer is how a queued ADD ended.
type answer struct {
	*lab.CNIAnswer
	err error
}

// queue sends an ADD to the daemon, which stands still.
func (v *victim) queue(ctx context.Context, t *testing.T) {
	t.Helper()
	box := cluster.Sandbox(ctx, t, v.node, "queued")
	v.add = make(chan answer, 1)
	background(ctx, t, func(ctx context.Context) {
		a, err := v.node.CNI(ctx, cluster.CallFor("ADD", box, "eth0"))
		v.add <- answer{a, err}
	})
}

// background runs f until it ends, or the test does.
func background(ctx context.Context, t *testing.T, f func(context.Context)) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	var g sync.WaitGroup
	g.Go(func() { f(ctx) })
	t.Cleanup(func() { cancel(); g.Wait() })
}

// addTime bounds the wait for an ADD that meets a daemon with a new subnet.
const addTime = 10 * time.Second

// answered looks at how the queued ADD ended: with an address of the new
// subnet, or with "try again later". A node that has left keeps it waiting for
// so long that only an answer given too early is looked for.
func (v *victim) answered(t *testing.T) {
	t.Helper()
	wait := addTime
	if v.way == leaving {
		wait = 0
	}
	select {
	case got := <-v.add:
		v.judgeAnswer(t, got)
	case <-time.After(wait):
		if v.way != leaving {
			t.Errorf("%s: the queued ADD has not ended", v)
		}
	}
}

func (v *victim) judgeAnswer(t *testing.T, a answer) {
	t.Helper()
	switch {
	case a.err != nil:
		t.Errorf("%s: the queued ADD: %v", v, a.err)
	case a.Err != nil && a.Err.Code == api.CodeTryAgain:
	case a.Err != nil:
		t.Errorf("%s: the queued ADD ended with %v, want an address or code %d", v, a.Err, api.CodeTryAgain)
	default:
		ip, _ := netip.AddrFromSlice(cluster.Result(t, a.CNIAnswer).IPs[0].Address.IP)
		if ip = ip.Unmap(); v.way == leaving || !v.spare.Contains(ip) {
			t.Errorf("%s: the queued ADD was given %s; %s is its rival's, and its own is %s", v, ip, v.old, v.spare)
		}
	}
}

// settled says whether the daemon has come to what it holds from now on. Where
// it stands still once more, it goes on.
func (v *victim) settled(ctx context.Context, t *testing.T) error {
	if v.isStopped() {
		v.look(t)
		v.goOn(t)
	}
	s, err := v.node.Status(ctx)
	if err != nil {
		return err
	}
	if v.way == leaving && s.Subnet == "" && strings.Contains(s.Reason, "leave") {
		return nil
	}
	if v.way != leaving && s.State == api.StateHeld && s.Subnet == v.spare.String() {
		return nil
	}
	return fmt.Errorf("%s: state %s, subnet %s, %s", v, s.State, s.Subnet, s.Reason)
}
