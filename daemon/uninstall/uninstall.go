package uninstall

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/cnidir"
	"github.com/tenure-cni/tenure/daemon/dirlock"
	"github.com/tenure-cni/tenure/daemon/install"
)

// Options say what to take away.
type Options struct {
	// Instance is tenured's --name.
	Instance                 string
	Socket, RunDir, StateDir string
	// SubnetFile is tenured's --subnet-file.
	SubnetFile string
	// ConfDir is where the runtime reads CNI configurations.
	ConfDir string
	Layout  install.Layout
	// WithPods goes on although pods have addresses.
	WithPods bool
	// KeepPrograms leaves programs, unit and configuration to a package manager.
	KeepPrograms bool
	// Purge removes the daemon's configuration too, and the data of an
	// embedded etcd.
	Purge bool
}

// ErrPods says that pods still have addresses.
var ErrPods = errors.New("pods still have addresses of this node")

// Times that the steps may take.
const (
	leaveTimeout = 25 * time.Second
	stopTimeout  = 20 * time.Second
	askTimeout   = 5 * time.Second
)

// removal is one run.
type removal struct {
	Options
	say func(format string, args ...any)
	// networks are the pod networks, none where nobody knows them.
	networks []netip.Prefix
	pods     []string
}

// Run takes the instance away and says each step. Its error is what stopped
// it; what could not be done and did not stop it is said.
func Run(ctx context.Context, o Options, say func(format string, args ...any)) error {
	r := &removal{Options: o, say: say}
	status := r.ask(ctx)
	r.networks = r.podNetworks(status)
	if err := errors.Join(r.refuse(ctx), r.refuseContainer()); err != nil {
		return err
	}
	taken, err := r.takeConfigurations()
	if err != nil {
		return err
	}
	// A pod may have come between the look and the end of the configuration.
	if err := r.refuse(ctx); err != nil {
		return errors.Join(err, taken.putBack(r.ConfDir))
	}
	if status != nil {
		r.leave(ctx)
	} else if _, err := os.Stat(filepath.Join(r.StateDir, "node.json")); err == nil {
		r.say("no tenured answers: the subnet is not given up, it is free when its lease ends; sooner: tenurectl release NODE --force")
	}
	if err := r.stopDaemon(ctx); err != nil {
		return err
	}
	release, err := r.hold(ctx)
	if err != nil {
		return err
	}
	defer release()
	// The daemon may have written it once more before it ended.
	if _, err := r.takeConfigurations(); err != nil {
		return err
	}
	if err := r.kernel(ctx); err != nil {
		return err
	}
	if err := r.directories(); err != nil {
		return err
	}
	if r.KeepPrograms {
		return nil
	}
	return r.programs()
}

// ask returns what the daemon says, nil where none answers.
func (r *removal) ask(ctx context.Context) *api.Status {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	s, err := api.NewClient(r.Socket).Status(ctx)
	if err != nil {
		return nil
	}
	return s
}

// refuse looks for pods.
func (r *removal) refuse(ctx context.Context) error {
	pods, err := r.findPods(ctx)
	if err != nil {
		return fmt.Errorf("look for pods: %w", err)
	}
	r.pods = pods
	if len(pods) > 0 && !r.WithPods {
		return fmt.Errorf("%w: %d, among them %s; drain the node first, or give --with-pods: they keep running, without network", ErrPods, len(pods), pods[0])
	}
	return nil
}

// taken are configurations that were taken away, by name.
type taken map[string][]byte

// takeConfigurations removes those that lead to this instance's socket.
func (r *removal) takeConfigurations() (taken, error) {
	files, err := cnidir.Read(r.ConfDir)
	if err != nil {
		return nil, fmt.Errorf("read CNI configurations: %w", err)
	}
	all := taken{}
	for _, f := range files {
		if !f.Ours() || f.Socket != r.Socket && (f.Socket != "" || r.Socket != api.DefaultSocket) {
			continue
		}
		path := filepath.Join(r.ConfDir, f.Name)
		b, err := os.ReadFile(path)
		if err == nil {
			err = os.Remove(path)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("remove CNI configuration: %w", err), all.putBack(r.ConfDir))
		}
		all[f.Name] = b
		r.say("removed %s: no pod is added from now on", path)
	}
	return all, nil
}

func (t taken) putBack(dir string) error {
	var errs []error
	for name, content := range t {
		_, err := install.Put(dir, install.File{Path: name, Mode: 0o644, Content: content})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// leave has the daemon close the overlay and give the subnet up. It was seen
// above that there are no pods, or that they do not matter. Where etcd is away
// the key goes with its lease, which nobody renews any more.
func (r *removal) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	left, err := api.NewClient(r.Socket).Leave(ctx, api.Leave{WithPods: true})
	switch {
	case err != nil:
		r.say("the subnet was not given up, it is free when its lease ends: %v", err)
	case left.Error != "":
		r.say("the subnet was not given up, it is free when its lease ends: %s", left.Error)
	case left.Subnet != "":
		r.say("gave %s up", left.Subnet)
	}
}

// hold keeps every daemon off the directories, also one that a supervisor
// starts again. Directories that do not exist are not made.
func (r *removal) hold(ctx context.Context) (release func(), err error) {
	var dirs []string
	for _, dir := range []string{r.RunDir, r.StateDir} {
		if _, err := os.Stat(dir); err == nil {
			dirs = append(dirs, dir)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	for {
		release, err = dirlock.Hold(dirs...)
		if err == nil {
			return release, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("tenured still runs: stop it, then run this again: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// directories removes the files that tenured makes, and the directories where
// nothing else is left in them.
func (r *removal) directories() error {
	var errs []error
	remove := func(path string) { errs = append(errs, os.RemoveAll(path)) }
	for _, name := range []string{"ledger.json", "on-stranded.json", "del", "tenured.sock", "subnet.env"} {
		remove(filepath.Join(r.RunDir, name))
	}
	remove(filepath.Join(filepath.Dir(r.Socket), "del"))
	remove(r.Socket)
	remove(r.SubnetFile)
	remove(filepath.Join(r.StateDir, "node.json"))
	if r.Purge {
		remove(filepath.Join(r.StateDir, "etcd"))
	}
	for _, dir := range []string{r.RunDir, r.StateDir} {
		errs = append(errs, r.lastOf(dir))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove files: %w", err)
	}
	return nil
}

// lastOf removes a directory in which only the lock and remains of the files
// above are left; their names begin as those do.
func (r *removal) lastOf(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var strangers []string
	for _, e := range entries {
		name := strings.TrimPrefix(e.Name(), ".")
		switch {
		case e.Name() == "lock": // last
		case strings.HasPrefix(name, "ledger.json"), strings.HasPrefix(name, "node.json"), strings.HasPrefix(name, "subnet.env"), strings.HasPrefix(name, "on-stranded.json"):
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		default:
			strangers = append(strangers, e.Name())
		}
	}
	if len(strangers) > 0 {
		r.say("left %s: in it are %s", dir, strings.Join(strangers, ", "))
		return nil
	}
	if err := errors.Join(os.RemoveAll(filepath.Join(dir, "lock")), os.Remove(dir)); err != nil {
		return err
	}
	r.say("removed %s", dir)
	return nil
}
