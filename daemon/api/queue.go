package api

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// The names in the queue's directory: one file per attachment, <hash>.json.
// Its writer begins it as *.tmp, the daemon works on it as *.taken, and what
// cannot be read ends as *.damaged.
const (
	queuedSuffix  = ".json"
	takenSuffix   = ".taken"
	damagedSuffix = ".damaged"
	tempSuffix    = ".tmp"

	// tempAge is when a temporary file has no writer any more.
	tempAge = time.Minute
)

// Queued is a DEL that waits on disk for a daemon that did not answer.
type Queued struct {
	// API is the path under which it would have been posted, PathCNI or
	// PathIPAM.
	API string `json:"api"`
	Request
}

// QueueDir returns the directory of the DELs queued for the daemon that
// listens on socket.
func QueueDir(socket string) string { return filepath.Join(filepath.Dir(socket), "del") }

// Enqueue puts a DEL on disk, on record even after a power cut once it
// returns nil. Repeated DELs of one attachment take one file, so what the
// queue can grow to is bounded by what was ever attached. The error is of the
// file system.
func Enqueue(dir string, q Queued) error {
	b, err := json.Marshal(q)
	if err != nil {
		return fmt.Errorf("encode queued DEL: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make DEL queue: %w", err)
	}
	name := filepath.Join(dir, queueName(q))
	temp, err := writeTemp(dir, b)
	if err != nil {
		return fmt.Errorf("write queued DEL: %w", err)
	}
	if err := os.Rename(temp, name); err != nil {
		return fmt.Errorf("queue DEL: %w", errors.Join(err, os.Remove(temp)))
	}
	// The directory may be new, then its own entry must be on disk as well.
	if err := errors.Join(syncDir(dir), syncDir(filepath.Dir(dir))); err != nil {
		return fmt.Errorf("sync DEL queue: %w", err)
	}
	return nil
}

// queueName is the same for every DEL of one attachment, and no part of it is
// taken from the caller's text.
func queueName(q Queued) string {
	var config struct {
		Name string `json:"name"`
	}
	// Without a readable name the attachment is still told by the rest.
	_ = json.Unmarshal(q.Config, &config)
	key := strings.Join([]string{q.API, config.Name, q.ContainerID, q.IfName}, "\x00")
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:16]) + queuedSuffix
}

func writeTemp(dir string, b []byte) (name string, err error) {
	f, err := os.CreateTemp(dir, "*"+tempSuffix)
	if err != nil {
		return "", err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	return f.Name(), nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// QueueLength is how many DELs wait in the queue, those that a Drain works on
// included. A missing directory is an empty queue.
func QueueLength(dir string) (int, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("read DEL queue: %w", err)
	}
	n := 0
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); ext == queuedSuffix || ext == takenSuffix {
			n++
		}
	}
	return n, nil
}

// Drain calls do for every queued DEL and removes those for which it returns
// nil; the others stay for the next Drain. A file that cannot be decoded is
// set aside as *.damaged. The error joins what do, the damaged files and the
// file system had to say; a missing directory is an empty queue.
//
// A DEL can be queued while the daemon runs (it was silent for too long), and
// the same container may be added again after that. So drain before every
// ADD, not only at start: an empty queue costs one read of its directory. One
// Drain at a time.
func Drain(dir string, do func(Queued) error) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read DEL queue: %w", err)
	}
	var failed []error
	for _, taken := range takeAll(dir, entries, &failed) {
		if err := drainOne(taken, do); err != nil {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// takeAll renames what is queued, so that a DEL which is queued again while
// this one is worked on is not removed with it. What an earlier Drain left
// taken is returned too.
func takeAll(dir string, entries []os.DirEntry, failed *[]error) []string {
	var taken []string
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		switch filepath.Ext(e.Name()) {
		case takenSuffix:
			taken = append(taken, path)
		case queuedSuffix:
			to := strings.TrimSuffix(path, queuedSuffix) + takenSuffix
			if err := os.Rename(path, to); err != nil {
				*failed = append(*failed, fmt.Errorf("take queued DEL: %w", err))
				continue
			}
			taken = append(taken, to)
		case tempSuffix:
			if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > tempAge {
				_ = os.Remove(path)
			}
		}
	}
	slices.Sort(taken)
	return slices.Compact(taken)
}

func drainOne(taken string, do func(Queued) error) error {
	b, err := os.ReadFile(taken)
	if err != nil {
		return fmt.Errorf("read queued DEL: %w", err)
	}
	q, err := decodeQueued(b)
	if err != nil {
		aside := strings.TrimSuffix(taken, takenSuffix) + damagedSuffix
		return errors.Join(fmt.Errorf("queued DEL set aside as %s: %w", aside, err), os.Rename(taken, aside))
	}
	if err := do(q); err != nil {
		return fmt.Errorf("queued DEL of container %s interface %s: %w", q.ContainerID, q.IfName, err)
	}
	if err := os.Remove(taken); err != nil {
		return fmt.Errorf("remove queued DEL: %w", err)
	}
	return nil
}

func decodeQueued(b []byte) (Queued, error) {
	var q Queued
	if err := json.Unmarshal(b, &q); err != nil {
		return Queued{}, fmt.Errorf("damaged: %w", err)
	}
	if (q.API != PathCNI && q.API != PathIPAM) || q.ContainerID == "" || len(bytes.TrimSpace(q.Config)) == 0 {
		return Queued{}, errors.New("damaged: api, containerID or config is missing")
	}
	return q, nil
}
