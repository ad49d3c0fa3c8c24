package lab

import (
	"bufio"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	registryDir = "/run/tenure-lab"
	netnsDir    = "/run/netns"
	cgroupDir   = "/sys/fs/cgroup"
)

// record is what a lab leaves on disk for whoever has to remove it.
type record struct {
	Owner    identity `json:"owner"`
	Boot     string   `json:"boot"`
	Detached bool     `json:"detached"`
	Dir      string   `json:"dir"`
	// OwnDir says that Dir was made by the lab and goes with it.
	OwnDir bool `json:"ownDir"`
}

// identity names a process beyond reuse of its number: start is the kernel's
// start time in clock ticks since boot.
type identity struct {
	Pid   int    `json:"pid"`
	Start uint64 `json:"start"`
}

// claim removes the labs of dead owners and takes a free id. The id is a
// directory under /run/tenure-lab; whoever makes it has it.
func claim(rec record) (string, error) {
	if err := os.MkdirAll(registryDir, 0o755); err != nil {
		return "", fmt.Errorf("make lab registry: %w", err)
	}
	unlock, err := lockRegistry()
	if err != nil {
		return "", err
	}
	defer unlock()
	if err := sweep(); err != nil {
		return "", fmt.Errorf("remove labs of dead owners: %w", err)
	}
	for {
		id := strings.ToLower(rand.Text()[:5])
		err := os.Mkdir(filepath.Join(registryDir, id), 0o755)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("claim lab id: %w", err)
		}
		return id, writeRecord(id, rec)
	}
}

// lockRegistry keeps labs that start together from sweeping each other's
// half-written records.
func lockRegistry() (func(), error) {
	f, err := os.OpenFile(filepath.Join(registryDir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lab registry lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock lab registry: %w", err)
	}
	return func() { _ = f.Close() }, nil
}

func writeRecord(id string, rec record) error {
	b, err := json.Marshal(rec)
	if err != nil {
		return fmt.Errorf("encode record of lab %s: %w", id, err)
	}
	if err := os.WriteFile(filepath.Join(registryDir, id, "lab.json"), b, 0o600); err != nil {
		return fmt.Errorf("write record of lab %s: %w", id, err)
	}
	return nil
}

func readRecord(id string) (record, error) {
	var rec record
	b, err := os.ReadFile(filepath.Join(registryDir, id, "lab.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return rec, nil // its owner died between two lines of claim
	}
	if err != nil {
		return rec, fmt.Errorf("read record of lab %s: %w", id, err)
	}
	if err := json.Unmarshal(b, &rec); err != nil {
		return rec, fmt.Errorf("decode record of lab %s: %w", id, err)
	}
	return rec, nil
}

// recordChild appends one process to the lab's record.
func recordChild(id string, pid int) error {
	child, err := identify(pid)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // already over, nothing to end
	}
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(registryDir, id, "children"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("record process %d of lab %s: %w", pid, id, err)
	}
	_, err = fmt.Fprintf(f, "%d %d\n", child.Pid, child.Start)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("record process %d of lab %s: %w", pid, id, err)
	}
	return nil
}

func readChildren(id string) ([]identity, error) {
	f, err := os.Open(filepath.Join(registryDir, id, "children"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read processes of lab %s: %w", id, err)
	}
	defer func() { _ = f.Close() }()
	var children []identity
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var c identity
		if _, err := fmt.Sscanf(lines.Text(), "%d %d", &c.Pid, &c.Start); err != nil {
			continue // a line torn by the owner's death
		}
		children = append(children, c)
	}
	return children, lines.Err()
}

// listLabs returns the ids on record.
func listLabs() ([]string, error) {
	entries, err := os.ReadDir(registryDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list labs: %w", err)
	}
	var ids []string
	for _, e := range entries {
		if e.IsDir() {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

// sweep removes every lab whose owner is gone and that was not meant to
// outlive it.
func sweep() error {
	ids, err := listLabs()
	if err != nil {
		return err
	}
	var errs []error
	for _, id := range ids {
		rec, err := readRecord(id)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if rec.Detached || rec.Boot == bootID() && rec.Owner.alive() {
			continue
		}
		errs = append(errs, reap(id, rec))
	}
	return errors.Join(errs...)
}

// reap ends the recorded processes of a lab, deletes its namespaces, control
// groups and files.
func reap(id string, rec record) error {
	children, err := readChildren(id)
	errs := []error{err}
	if rec.Boot == bootID() {
		for _, c := range children {
			errs = append(errs, c.kill())
		}
	}
	errs = append(errs, deleteNamespaces(nsPrefix(id)), deleteCgroups(cgroupDir, nsPrefix(id)))
	if rec.OwnDir && rec.Dir != "" {
		errs = append(errs, unmountBelow(rec.Dir), os.RemoveAll(rec.Dir))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove lab %s: %w", id, err)
	}
	return os.RemoveAll(filepath.Join(registryDir, id))
}

// unmountBelow takes away what was mounted in a directory, for example a small
// disk that a test has given a node: nothing below it could be removed.
func unmountBelow(dir string) error {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return fmt.Errorf("list mounts: %w", err)
	}
	var errs []error
	for line := range strings.Lines(string(mounts)) {
		// Names of labs and nodes hold nothing that the kernel would escape.
		if fields := strings.Fields(line); len(fields) > 1 && strings.HasPrefix(fields[1], dir+"/") {
			if err := unix.Unmount(fields[1], unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
				errs = append(errs, fmt.Errorf("unmount %s: %w", fields[1], err))
			}
		}
	}
	return errors.Join(errs...)
}

// identify reads who pid is now. A pid that nobody has is fs.ErrNotExist, and
// so is a zombie: it holds nothing any more.
func identify(pid int) (identity, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, unix.ESRCH) || errors.Is(err, fs.ErrNotExist) {
		return identity{}, fmt.Errorf("process %d: %w", pid, fs.ErrNotExist)
	}
	if err != nil {
		return identity{}, fmt.Errorf("look at process %d: %w", pid, err)
	}
	// The second field is the command in parentheses and may hold anything;
	// the state is the first field after it and the start time the 20th.
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(fields) < 20 {
		return identity{}, fmt.Errorf("look at process %d: unexpected stat %q", pid, b)
	}
	if fields[0] == "Z" || fields[0] == "X" {
		return identity{}, fmt.Errorf("process %d has ended: %w", pid, fs.ErrNotExist)
	}
	var start uint64
	if _, err := fmt.Sscan(fields[19], &start); err != nil {
		return identity{}, fmt.Errorf("look at process %d: start time %q: %w", pid, fields[19], err)
	}
	return identity{Pid: pid, Start: start}, nil
}

func (p identity) alive() bool {
	now, err := identify(p.Pid)
	return err == nil && now == p
}

// kill ends the process, if it still is the recorded one, and waits until it
// is gone. The pidfd is opened before the comparison, so that the signal
// cannot hit a successor of the number.
func (p identity) kill() error {
	fd, err := unix.PidfdOpen(p.Pid, 0)
	// Gone, or the number is a thread's by now (ENOENT, EINVAL in older kernels).
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", p.Pid, err)
	}
	defer func() { _ = unix.Close(fd) }()
	if !p.alive() {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", p.Pid, err)
	}
	ended := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if _, err := unix.Poll(ended, int((5 * time.Second).Milliseconds())); err != nil {
		return fmt.Errorf("wait for the end of process %d: %w", p.Pid, err)
	}
	return nil
}

func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
