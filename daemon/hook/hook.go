package hook

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// Pod is one pod interface on a lost subnet. It is the key of the memory: the
// same container on another lost subnet is another Pod.
type Pod struct {
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
	// Address and Subnet hold one text for each family, with commas between.
	Address string `json:"address"`
	Subnet  string `json:"subnet"`
}

// Stranding is a pod that is stranded, or may be.
type Stranding struct {
	Pod
	// Due says that the command is to be run. Without it nothing happens but
	// that the memory is kept.
	Due bool
	// NewSubnet is what the node holds now, "" for nothing.
	NewSubnet string
	// Reason says what happened to Subnet.
	Reason string
}

// Config is what a Hook works with; all fields are required, but the limits.
type Config struct {
	// Command is the path of an executable file.
	Command string
	// File is the memory's path, Boot the boot whose pods it is about.
	File, Boot string
	// Node is the node's name, for the command.
	Node string
	// Environ is what the command inherits, in the form of os.Environ.
	Environ []string
	// Strandings lists all pods that are or may be stranded now. It is called
	// whenever something is decided, so that no decision is about the past.
	Strandings func() []Stranding
	Log        *slog.Logger

	Limits Limits
}

// Limits bound what the command may use; a zero field is the default.
type Limits struct {
	// Timeout is what one run may take: a minute.
	Timeout time.Duration
	// Parallel is how many run at once: 4.
	Parallel int
	// Tries is how often it is run for one pod until it ends well: 5.
	Tries int
	// Pause is the time before the second try, doubled before each further
	// one: 5 s.
	Pause time.Duration
}

func (l Limits) withDefaults() Limits {
	if l.Timeout == 0 {
		l.Timeout = time.Minute
	}
	if l.Parallel == 0 {
		l.Parallel = 4
	}
	if l.Tries == 0 {
		l.Tries = 5
	}
	if l.Pause == 0 {
		l.Pause = 5 * time.Second
	}
	return l
}

// Hook runs the command. Run must be called once.
type Hook struct {
	cfg  Config
	wake chan struct{} // capacity 1

	mu   sync.Mutex
	book book
	// unsaved says that the file lacks a change of the book.
	unsaved bool
	// complained is when that was logged last.
	complained time.Time
}

// New returns a Hook that has done nothing yet.
func New(cfg Config) *Hook {
	cfg.Limits = cfg.Limits.withDefaults()
	return &Hook{cfg: cfg, wake: make(chan struct{}, 1), book: book{}}
}

// Changed tells the hook that Strandings may list others than before. It
// returns at once.
func (h *Hook) Changed() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// GivenUp lists the pods for which the command has failed for good.
func (h *Hook) GivenUp() []Pod {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []Pod
	for p, e := range h.book {
		if !e.done && e.tries >= h.cfg.Limits.Tries {
			all = append(all, p)
		}
	}
	return all
}

// ended is one run's end.
type ended struct {
	of  Stranding
	ran ran
}

// Run runs the command for whom it is due until ctx ends, and then waits for
// the end of what it has started. Its error is always nil: a command that
// fails is no fault of the daemon.
func (h *Hook) Run(ctx context.Context) error {
	h.remember()
	ends := make(chan ended)
	running := 0
	for {
		start, wait := h.next(h.cfg.Strandings(), h.cfg.Limits.Parallel-running)
		for _, s := range start {
			running++
			go func() { ends <- ended{s, h.run(ctx, s)} }()
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-h.wake:
		case <-timer.C:
		case e := <-ends:
			running--
			h.note(ctx, e)
		}
		timer.Stop()
		if ctx.Err() != nil {
			break
		}
	}
	for ; running > 0; running-- {
		h.note(ctx, <-ends)
	}
	return nil
}

// next forgets who is stranded no more and takes those whose turn it is.
func (h *Hook) next(all []Stranding, room int) (start []Stranding, wait time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.book.forget(all) {
		h.unsaved = true
	}
	h.save()
	return h.book.take(all, room, time.Now(), h.cfg.Limits.Tries)
}

// note puts a run's end into the book. A run that the daemon's own end has cut
// off is none.
func (h *Hook) note(ctx context.Context, e ended) {
	h.mu.Lock()
	defer h.mu.Unlock()
	log := h.cfg.Log.With("event", "on-stranded", "container", e.of.ContainerID, "if", e.of.IfName, "address", e.of.Address,
		"subnet", e.of.Subnet, "took", e.ran.took.Round(time.Millisecond), "output", e.ran.output)
	en := h.book[e.of.Pod]
	en.running = false
	switch {
	case e.ran.err == nil:
		en.done, h.unsaved = true, true
		log.Info("the command of --on-stranded has run")
	case ctx.Err() != nil:
		log.Warn("the command of --on-stranded was ended with the daemon; the next one runs it again", "error", e.ran.err)
	default:
		en.tries++
		pause := h.cfg.Limits.Pause << (en.tries - 1)
		en.next = time.Now().Add(pause)
		if en.tries < h.cfg.Limits.Tries {
			log.Warn("the command of --on-stranded failed", "error", e.ran.err, "try", en.tries, "again", pause)
		} else {
			log.Error("the command of --on-stranded failed too often for this pod and is given up; see to the pod by hand, or repair the command and restart tenured",
				"error", e.ran.err, "try", en.tries)
		}
	}
	h.save()
}

// idle is how often the list is read without a reason.
const idle = 30 * time.Second

// book is what has been done about each pod.
type book map[Pod]*entry

type entry struct {
	running, done bool
	tries         int
	next          time.Time // not before, after a failure
}

// forget drops the pods that are not listed any more, and says whether one of
// them was done.
func (b book) forget(all []Stranding) (changed bool) {
	listed := make(map[Pod]bool, len(all))
	for _, s := range all {
		listed[s.Pod] = true
	}
	for p, e := range b {
		if !listed[p] && !e.running {
			changed = changed || e.done
			delete(b, p)
		}
	}
	return changed
}

// take marks up to room pods as running and returns them, and how long nothing
// else has to be done.
func (b book) take(all []Stranding, room int, now time.Time, tries int) (start []Stranding, wait time.Duration) {
	wait = idle
	for _, s := range all {
		e := b[s.Pod]
		if e == nil {
			e = &entry{}
		}
		switch {
		case !s.Due || e.running || e.done || e.tries >= tries:
		case now.Before(e.next):
			wait = min(wait, e.next.Sub(now))
		case len(start) < room:
			e.running, b[s.Pod] = true, e
			start = append(start, s)
		}
	}
	return start, wait
}

// done lists the pods for which the command has ended well, in order.
func (b book) done() []Pod {
	all := []Pod{}
	for p, e := range b {
		if e.done {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, Pod.compare)
	return all
}

// String is for people.
func (p Pod) String() string { return fmt.Sprintf("%s/%s (%s)", p.ContainerID, p.IfName, p.Address) }
