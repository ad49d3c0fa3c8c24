package hook

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"
)

// memory is the file's form.
type memory struct {
	// Boot stamps the file: the pods of another boot are gone.
	Boot string `json:"boot"`
	// Done are the pods for which the command has ended well.
	Done []Pod `json:"done"`
}

// remember fills the book from the file. What cannot be read is forgotten: to
// run the command twice does less harm than to leave a pod alone.
func (h *Hook) remember() {
	done, err := load(h.cfg.File, h.cfg.Boot)
	if err := sweep(h.cfg.File); err != nil {
		h.cfg.Log.Warn("leftovers of a write remain", "error", err)
	}
	if err != nil {
		h.cfg.Log.Warn("the memory of --on-stranded is lost; the command runs again for pods that are stranded still", "error", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range done {
		h.book[p] = &entry{done: true}
	}
}

// save writes the book where the file lacks something. The lock is held.
func (h *Hook) save() {
	if !h.unsaved {
		return
	}
	err := store(h.cfg.File, memory{Boot: h.cfg.Boot, Done: h.book.done()})
	if err == nil {
		h.unsaved, h.complained = false, time.Time{}
		return
	}
	// Tried again whenever something is decided: told once a minute.
	if time.Since(h.complained) >= time.Minute {
		h.complained = time.Now()
		h.cfg.Log.Error("the memory of --on-stranded is not on disk; a restart of the daemon would run the command again", "error", err)
	}
}

// sweep removes what a write leaves behind when the process is killed in the
// middle of it.
func sweep(path string) error {
	left, err := filepath.Glob(filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+"[0-9]*"))
	for _, f := range left {
		err = errors.Join(err, os.Remove(f))
	}
	return err
}

func load(path, boot string) ([]Pod, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read memory: %w", err)
	}
	var m memory
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, fmt.Errorf("read memory %s: %w", path, err)
	}
	if m.Boot != boot {
		return nil, nil
	}
	return m.Done, nil
}

// store replaces the file atomically; without anything to remember it goes.
func store(path string, m memory) error {
	if len(m.Done) == 0 {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove memory: %w", err)
		}
		return nil
	}
	b, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode memory: %w", err)
	}
	if err := renameio.WriteFile(path, b, 0o600, renameio.WithTempDir(filepath.Dir(path))); err != nil {
		return fmt.Errorf("write memory %s: %w", path, err)
	}
	return nil
}

func (p Pod) compare(q Pod) int {
	return cmp.Or(cmp.Compare(p.ContainerID, q.ContainerID), cmp.Compare(p.IfName, q.IfName), cmp.Compare(p.Subnet, q.Subnet), cmp.Compare(p.Address, q.Address))
}
