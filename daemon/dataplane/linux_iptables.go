package dataplane

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	goiptables "github.com/coreos/go-iptables/iptables"
)

const (
	// lockWait is how many seconds iptables waits for others that hold its
	// lock.
	lockWait = "5"
	// iptablesTimeout ends a run of iptables that hangs.
	iptablesTimeout = 15 * time.Second
)

// iptables runs the host's iptables-save and iptables-restore, of the legacy
// or the nft kind, whichever the name leads to.
type iptables struct {
	// six is for ip6tables.
	six      bool
	instance string
	program  string
	ns       namespace
	marker   *marker
	// path is "" until the program has been found, kind is its own word for
	// what it is.
	path, kind string
	// file is what it was resolved to then.
	file        string
	randomFully bool
	// noTrackFault says why the raw table is left out.
	noTrackFault string
}

// The kinds of iptables.
const (
	kindLegacy = "legacy"
	kindNFT    = "nf_tables"
)

// find looks the program up, again as long as there is none.
func (t *iptables) find() error {
	if t.path != "" {
		return nil
	}
	path, err := t.lookUp()
	if err != nil {
		return fmt.Errorf("find %s: %w", t.name(""), err)
	}
	protocol := goiptables.ProtocolIPv4
	if t.six {
		protocol = goiptables.ProtocolIPv6
	}
	ipt, err := goiptables.New(goiptables.Path(path), goiptables.IPFamily(protocol))
	if err != nil {
		return fmt.Errorf("ask %s for its version: %w", path, err)
	}
	t.path, t.randomFully = path, ipt.HasRandomFully()
	version, err := t.run(context.Background(), "", "", "--version")
	if err != nil {
		t.path = ""
		return err
	}
	t.kind = kindLegacy // those of before the second kind do not say it
	if strings.Contains(version, kindNFT) {
		t.kind = kindNFT
	}
	return nil
}

// lookUp is where the program is; ip6tables is the one beside iptables, and of
// its kind.
func (t *iptables) lookUp() (string, error) {
	dir, file := filepath.Split(cmp.Or(t.program, t.name("")))
	if t.six && strings.HasPrefix(file, "iptables") {
		file = "ip6" + strings.TrimPrefix(file, "ip")
	}
	return exec.LookPath(dir + file)
}

// name is what a program of this family is called.
func (t *iptables) name(suffix string) string {
	if t.six {
		return "ip6tables" + suffix
	}
	return "iptables" + suffix
}

// resolved is the file that the program's name leads to now: the host may
// change from one kind to the other.
func (t *iptables) resolved() string {
	path, err := t.lookUp()
	if err != nil {
		return ""
	}
	file, err := filepath.EvalSymlinks(path)
	if err != nil {
		return ""
	}
	return file
}

// read runs iptables-save once.
func (t *iptables) read(ctx context.Context) (Rules, error) {
	if now := t.resolved(); now != t.file {
		t.path, t.file, t.noTrackFault = "", now, "" // another kind, or version
	}
	if err := t.find(); err != nil {
		return Rules{}, err
	}
	saved, err := t.run(ctx, "", "-save")
	if err != nil {
		t.path = "" // it may have been replaced by another
		return Rules{}, err
	}
	rules := parseRules(t.instance, saved)
	rules.RandomFully, rules.NoTrackFault = t.randomFully, t.noTrackFault
	rules.Mixed = t.mixed(ctx)
	return rules, nil
}

// mixed says which rules the other kind of iptables has beside those of the
// host's; "" if there are none, or nothing to see them with. A packet has to
// pass both, and neither shows the other's.
func (t *iptables) mixed(ctx context.Context) string {
	other := t.name("-nft")
	if t.kind == kindNFT {
		other = t.name("-legacy")
		if names, err := t.marker.legacyTables(legacyKindOf(t.six)); err != nil || len(names) == 0 {
			return ""
		}
	}
	o := &iptables{ns: t.ns, path: filepath.Join(filepath.Dir(t.path), other)}
	saved, err := o.run(ctx, "", "-save")
	if err != nil {
		return ""
	}
	return otherKind(saved, t.kind, other)
}

// apply runs iptables-restore once. If that fails, each table is tried by
// itself, so that a table this kernel lacks does not keep the others from
// being filled; but not while others hold the lock, which each would wait for
// in turn. When the raw table is the only one to fail, it is left out
// from then on: the overlay works without it, only a little slower.
func (t *iptables) apply(ctx context.Context, edits []TableEdit) error {
	err := t.restore(ctx, edits)
	if err == nil || t.locked(err) {
		return err
	}
	var raw, others error
	for _, e := range edits {
		err := t.restore(ctx, []TableEdit{e})
		if e.Table == "raw" && len(e.Fill) > 0 {
			raw = err
		} else {
			others = errors.Join(others, err)
		}
	}
	if raw != nil && others == nil {
		t.noTrackFault = raw.Error()
		return nil
	}
	return errors.Join(raw, others)
}

// locked says whether iptables could not have its lock. Only the legacy kind
// has one; the other answers with the same code where the kernel refuses.
func (t *iptables) locked(err error) bool {
	const resourceProblem = 4
	var exit *exec.ExitError
	return t.kind == kindLegacy && errors.As(err, &exit) && exit.ExitCode() == resourceProblem
}

func (t *iptables) restore(ctx context.Context, edits []TableEdit) error {
	var input strings.Builder
	for _, e := range edits {
		input.WriteString(e.Restore())
	}
	_, err := t.run(ctx, input.String(), "-restore", "--noflush", "--wait", lockWait)
	return err
}

// run runs the program's sibling with the suffix and returns its output.
func (t *iptables) run(ctx context.Context, input, suffix string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, iptablesTimeout)
	defer cancel()
	var stdout, stderr bytes.Buffer
	err := t.ns.do(func() error {
		cmd := exec.CommandContext(ctx, t.path+suffix, args...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &stdout, &stderr
		return cmd.Run()
	})
	if err != nil {
		return "", fmt.Errorf("run %s%s: %w: %s", t.path, suffix, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.String(), nil
}
