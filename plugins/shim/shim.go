package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/tenure-cni/tenure/daemon/api"
)

// Limits bound what a verb waits for.
type Limits struct {
	// Add bounds a whole ADD, CHECK or GC; AddDial is how long an ADD, and
	// AskDial how long a CHECK or GC, waits for a daemon to listen.
	Add, AddDial, AskDial time.Duration
	// Del bounds the call of a DEL, DelDial its wait for a listener; then it
	// is queued.
	Del, DelDial time.Duration
	// Status bounds STATUS, the wait for a listener included.
	Status time.Duration
	// Pause is the time between two attempts to reach a listener.
	Pause time.Duration
}

// DefaultLimits returns the limits of DESIGN §6.
func DefaultLimits() Limits {
	return Limits{
		Add: api.AddTimeout, AddDial: api.DialWait, AskDial: time.Second,
		Del: api.DelTimeout, DelDial: api.DelDialWait,
		Status: api.StatusTimeout,
		Pause:  50 * time.Millisecond,
	}
}

// Shim serves the CNI verbs by asking tenured.
type Shim struct {
	// API is api.PathCNI or api.PathIPAM.
	API    string
	Limits Limits
	// Out takes the result of an ADD.
	Out io.Writer

	cniVersion string // of the configuration of the call
}

// Main serves the one call that the process environment and standard input
// hold, and returns the exit code. With the argument --version, which no
// runtime gives, it prints that of the build instead.
func Main(apiPath, build string) int {
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		_, _ = fmt.Fprintln(os.Stdout, filepath.Base(os.Args[0]), build)
		return 0
	}
	// skel compares CNI_NETNS with the plugin's own namespace, after the call:
	// an ADD would fail once it is done, and a DEL would fail for ever. The
	// daemon refuses the host's namespace before it touches anything.
	if err := os.Setenv("CNI_NETNS_OVERRIDE", "1"); err != nil {
		return fail(os.Stdout, "", types.NewError(types.ErrInternal, "set CNI_NETNS_OVERRIDE", err.Error()))
	}
	s := &Shim{API: apiPath, Limits: DefaultLimits(), Out: os.Stdout}
	supported := version.PluginSupports("0.3.1", "0.4.0", "1.0.0", "1.1.0")
	// An "about" text would turn a missing CNI_COMMAND into exit code 0.
	if err := skel.PluginMainFuncsWithError(s.Funcs(), supported, ""); err != nil {
		return fail(os.Stdout, s.cniVersion, err)
	}
	return 0
}

// Funcs returns the verbs for skel.
func (s *Shim) Funcs() skel.CNIFuncs {
	return skel.CNIFuncs{Add: s.Add, Del: s.Del, Check: s.Check, GC: s.GC, Status: s.Status}
}

// fail prints the error as the CNI specification has it and returns the exit
// code. Before a configuration was read there is only our own version to tell.
func fail(out io.Writer, cniVersion string, e *types.Error) int {
	if cniVersion == "" {
		cniVersion = version.Current()
	}
	b, err := json.MarshalIndent(struct {
		CNIVersion string `json:"cniVersion"`
		*types.Error
	}{cniVersion, e}, "", "    ")
	if err == nil {
		_, err = fmt.Fprintf(out, "%s\n", b)
	}
	if err != nil {
		_, _ = fmt.Fprintf(os.Stderr, "print CNI error %q: %v\n", e.Msg, err)
	}
	return 1
}

// Add asks the daemon for an interface or, as IPAM, an address, and prints the
// result just as it came. It waits for a daemon that is not up yet. The daemon
// takes back what it gave unless it hears that the result was printed.
func (s *Shim) Add(args *skel.CmdArgs) error {
	c, err := s.begin("add", args, true)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.Limits.Add)
	defer cancel()
	err = c.receive(ctx, s.Limits.AddDial, s.Limits.Pause, func(resp *api.Response) error { return s.print(c, resp) })
	if e := new(types.Error); err == nil || errors.As(err, &e) {
		return err
	}
	return c.unreached(api.CodeTryAgain, err)
}

// print passes the result of an ADD on.
func (s *Shim) print(c call, resp *api.Response) error {
	if resp.Error != nil {
		return resp.Error
	}
	if len(resp.Result) == 0 {
		return types.NewError(api.CodeTryAgain, c.daemon()+" answered without a result", "")
	}
	if _, err := s.Out.Write(resp.Result); err != nil {
		return types.NewError(api.CodeIO, "print the result", err.Error())
	}
	return nil
}

// Check asks the daemon whether the interface is as ADD left it.
func (s *Shim) Check(args *skel.CmdArgs) error { return s.ask("check", args) }

// GC tells the daemon which attachments are still valid.
func (s *Shim) GC(args *skel.CmdArgs) error { return s.ask("gc", args) }

func (s *Shim) ask(verb string, args *skel.CmdArgs) error {
	c, err := s.begin(verb, args, true)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.Limits.Add)
	defer cancel()
	resp, err := c.post(ctx, s.Limits.AskDial, s.Limits.Pause)
	if err != nil {
		return c.unreached(api.CodeTryAgain, err)
	}
	return failure(resp)
}

// Status asks the daemon whether it can serve an ADD. A daemon that is absent
// or silent cannot.
func (s *Shim) Status(args *skel.CmdArgs) error {
	c, err := s.begin("status", args, true)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.Limits.Status)
	defer cancel()
	resp, err := c.post(ctx, s.Limits.Status, s.Limits.Pause)
	if err != nil {
		return c.unreached(api.CodeNotReady, err)
	}
	return failure(resp)
}

// Del hands the DEL to the daemon or, if that is down, silent, confused or
// cannot do it now, to its queue on disk. If the disk refuses too, it waits for the daemon as long
// as a DEL may take. Only when nobody took the DEL it fails: the runtime then
// repeats it, where success would leak the address for ever.
func (s *Shim) Del(args *skel.CmdArgs) error {
	c, err := s.begin("del", args, false)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.Limits.Del)
	defer cancel()
	resp, err := c.post(ctx, s.Limits.DelDial, s.Limits.Pause)
	if err == nil && !later(resp) {
		return failure(resp)
	}
	full := api.Enqueue(api.QueueDir(c.socket), api.Queued{API: s.API, Request: c.req})
	if full == nil {
		return nil
	}
	if resp, err = c.post(ctx, s.Limits.Del, s.Limits.Pause); err == nil {
		return failure(resp)
	}
	e := c.unreached(api.CodeTryAgain, err)
	e.Details += "; and the DEL cannot be queued: " + full.Error()
	return e
}

// later says that the daemon asks for another try.
func later(resp *api.Response) bool {
	return resp.Error != nil && resp.Error.Code == api.CodeTryAgain
}

// failure is the verb's own error, nil if the daemon did what was asked.
func failure(resp *api.Response) error {
	if resp.Error != nil {
		return resp.Error
	}
	return nil
}
