package attach

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

var (
	// ErrNamespace says that the pod's network namespace is missing, is none,
	// or is the host's own.
	ErrNamespace = errors.New("network namespace is unusable")
	// ErrInterfaceExists says that the pod has an interface of that name which
	// is not the one that Add made.
	ErrInterfaceExists = errors.New("interface exists")
	// ErrForeignHost says that the host end's name is borne by a link that is
	// not this instance's.
	ErrForeignHost = errors.New("link is not ours")
	// ErrNoBridge says that the bridge is missing, or is none.
	ErrNoBridge = errors.New("no such bridge")
)

// Endpoint is a pod interface as Add leaves it.
type Endpoint struct {
	// HostName and HostMAC are those of the veth's end on the host.
	HostName string
	HostMAC  [6]byte
	// IfName and MAC are those of its end in the pod.
	IfName string
	MAC    [6]byte
	// Sandbox is the path of the pod's network namespace.
	Sandbox string
}

// Found is a host end that List found.
type Found struct {
	HostName string
	Owner    Owner
	// Addrs are what was given to the pod, as its alias keeps them.
	Addrs []netip.Prefix
}

// Attacher makes and removes the pod interfaces of one instance. It holds
// nothing but its settings and is safe for concurrent use; callers serialise
// calls for one Owner.
type Attacher struct {
	instance string
	host     netns.NsHandle
	log      *slog.Logger
	// before is called ahead of each Op; tests make it fail.
	before func(Op) error
	// Step is called ahead of each Op, and of a deletion, with the name of the
	// place; nil outside tests. It is set before the first call.
	Step func(where string)

	deletions sync.WaitGroup // that the kernel has not answered yet

	mu sync.Mutex
	// overdue are the deletions for which their caller has waited in vain, by
	// host name; each is closed when the kernel has answered.
	overdue map[string]chan struct{}
}

// New returns an Attacher for the instance. Its host ends are made in the
// namespace host, netns.None() for the process's own, which it only borrows.
func New(instance string, host netns.NsHandle, log *slog.Logger) *Attacher {
	return &Attacher{instance: instance, host: host, log: log, before: func(Op) error { return nil }}
}

// Add makes the pod interface, or what is missing of it, and describes it.
// Called again it changes nothing and answers the same. When it fails it
// takes back the pair that it made; one that was there before it leaves.
//
// Errors are ErrNamespace, ErrInterfaceExists, ErrForeignHost, ErrNoBridge,
// that of the context, which is looked at between two requests, or the kernel's.
func (a *Attacher) Add(ctx context.Context, netnsPath string, w Want) (Endpoint, error) {
	if err := a.awaitOverdue(ctx, w.HostName()); err != nil {
		return Endpoint{}, fmt.Errorf("add %s: %w", w.Owner, err)
	}
	k, have, err := a.observe(netnsPath, w)
	if err != nil {
		return Endpoint{}, fmt.Errorf("add %s: %w", w.Owner, err)
	}
	defer k.close()
	if have.Bridge == 0 {
		return Endpoint{}, fmt.Errorf("add %s: %w: %s", w.Owner, ErrNoBridge, w.Bridge)
	}
	if err := a.apply(ctx, k, w, have); err != nil {
		return Endpoint{}, fmt.Errorf("add %s: %w", w.Owner, err)
	}
	return Endpoint{w.HostName(), hostMAC(a.instance, w.HostName()), w.Owner.IfName, w.HardwareAddr(), netnsPath}, nil
}

// Check returns what Add would do to restore what it promised; nothing if the
// interface is as it should be. Errors are those of Add.
func (a *Attacher) Check(ctx context.Context, netnsPath string, w Want) ([]Op, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("check %s: %w", w.Owner, err)
	}
	k, have, err := a.observe(netnsPath, w)
	if err != nil {
		return nil, fmt.Errorf("check %s: %w", w.Owner, err)
	}
	defer k.close()
	return promised(Plan(w, have)), nil
}

// observe reads the kernel and refuses what stands in the way. The caller
// closes the kernel.
func (a *Attacher) observe(netnsPath string, w Want) (*kernel, State, error) {
	if err := w.validate(); err != nil {
		return nil, State{}, err
	}
	if w.Owner.Instance != a.instance {
		return nil, State{}, fmt.Errorf("owner is of instance %q, this is %q", w.Owner.Instance, a.instance)
	}
	podNS, err := openPodNS(netnsPath, a.host)
	if err != nil {
		return nil, State{}, err
	}
	k, err := openKernel(a.host, podNS)
	if err != nil {
		return nil, State{}, err
	}
	have, err := k.read(w)
	if err == nil {
		err = conflict(w, have)
	}
	if err != nil {
		k.close()
		return nil, State{}, err
	}
	return k, have, nil
}

// apply carries a plan out. A failure undoes the pair if this call made it.
func (a *Attacher) apply(ctx context.Context, k *kernel, w Want, have State) error {
	made := false
	for _, o := range Plan(w, have) {
		err := ctx.Err()
		if err == nil {
			err = a.before(o)
		}
		if err == nil {
			a.pass(o.Action)
			err = k.apply(o, w, &have)
		}
		if o.Action == CreatePair {
			if errors.Is(err, unix.EEXIST) {
				return a.explainExisting(k, w, err)
			}
			made = have.Host.Index != 0
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", o, err)
			if made {
				err = errors.Join(err, a.undo(k, w, have))
			}
			return err
		}
		if o.Action == DeleteHost {
			have.Host = Link{}
		}
		a.log.Debug("attached", "owner", w.Owner, "op", o)
	}
	return nil
}

// undo deletes the pair. It asks no context: the one of the call may be what
// failed, and a netlink request is bounded by itself.
func (a *Attacher) undo(k *kernel, w Want, have State) error {
	if err := deleteLink(k.host, have.Host.Index); err != nil {
		return fmt.Errorf("undo: delete veth %s: %w", w.HostName(), err)
	}
	return nil
}

// explainExisting says which of the two names was taken between reading and
// making. Nothing was made then, so nothing is undone.
func (a *Attacher) explainExisting(k *kernel, w Want, cause error) error {
	have, err := k.read(w)
	if err != nil {
		return errors.Join(cause, err)
	}
	if err := conflict(w, have); err != nil {
		return err
	}
	return fmt.Errorf("create veth %s: %w", w.HostName(), cause)
}

// Exists says whether a link of the host bears the name, ours or not.
func (a *Attacher) Exists(ctx context.Context, hostName string) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, fmt.Errorf("look for veth %s: %w", hostName, err)
	}
	h, err := openHandle(a.host)
	if err != nil {
		return false, fmt.Errorf("look for veth %s: %w", hostName, err)
	}
	defer h.Close()
	link, err := linkByName(h, hostName)
	return link != nil, err
}

// List returns the host ends of this instance, in the kernel's order.
func (a *Attacher) List(ctx context.Context) ([]Found, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("list veths: %w", err)
	}
	h, err := openHandle(a.host)
	if err != nil {
		return nil, fmt.Errorf("list veths: %w", err)
	}
	defer h.Close()
	links, err := untorn(func() ([]netlink.Link, error) { return h.LinkList() })
	if err != nil {
		return nil, fmt.Errorf("list veths: %w", err)
	}
	var found []Found
	for _, link := range links {
		owner, addrs, ok := ParseAlias(link.Attrs().Alias)
		if ok && owner.Instance == a.instance && link.Type() == kindVeth {
			found = append(found, Found{link.Attrs().Name, owner, addrs})
		}
	}
	return found, nil
}
