package ipam

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"
)

// schema is the version of the file's form. A file with a higher one is left
// alone.
const schema = 1

// header is the file without its allocations, which follow it one per line.
type header struct {
	Version int                         `json:"version"`
	Boot    string                      `json:"boot"`
	Last    map[netip.Prefix]netip.Addr `json:"last"`
}

// document is the whole file, as it is read.
type document struct {
	header
	Cooling     []cooling    `json:"cooling"`
	Allocations []Allocation `json:"allocations"`
}

type cooling struct {
	Address  netip.Addr `json:"address"`
	Released time.Time  `json:"released"`
}

func newRecord(a Allocation) (*record, error) {
	line, err := json.Marshal(a)
	if err != nil {
		return nil, fmt.Errorf("encode allocation of %s: %w", a.Key, err)
	}
	return &record{a, line}, nil
}

// encode appends the file's content to b. The document is put together by
// hand from encoded lines: a full /16 is written in the time of a copy.
func (s *state) encode(b []byte, boot string) ([]byte, error) {
	head, err := json.Marshal(header{schema, boot, s.last})
	if err != nil {
		return nil, fmt.Errorf("encode ledger: %w", err)
	}
	b = append(b, bytes.TrimSuffix(head, []byte("}"))...)
	b = append(b, ",\n\"cooling\":["...)
	sep := "\n"
	for _, sl := range s.slots {
		if !sl.cooling() {
			continue
		}
		b = append(b, sep...)
		b = append(b, `{"address":"`...)
		b = sl.addr.AppendTo(b)
		b = append(b, `","released":"`...)
		b = sl.released.UTC().AppendFormat(b, time.RFC3339Nano)
		b = append(b, `"}`...)
		sep = ",\n"
	}
	b = append(b, "],\n\"allocations\":["...)
	sep = "\n"
	for _, r := range s.records {
		b = append(b, sep...)
		b = append(b, r.line...)
		sep = ",\n"
	}
	return append(b, "]}\n"...), nil
}

// decode reads a file's content. Anything that encode would not write is an
// error: half a ledger would give an address twice.
func decode(b []byte) (*state, string, error) {
	var probe struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(b, &probe); err != nil {
		return nil, "", fmt.Errorf("decode ledger: %w", err)
	}
	if probe.Version > schema {
		return nil, "", fmt.Errorf("%w: it has version %d, this program knows %d", ErrNewerVersion, probe.Version, schema)
	}
	var doc document
	if err := json.Unmarshal(b, &doc); err != nil {
		return nil, "", fmt.Errorf("decode ledger: %w", err)
	}
	if doc.Version < 1 || doc.Boot == "" {
		return nil, "", errors.New("decode ledger: no version or no boot")
	}
	s, err := doc.state()
	return s, doc.Boot, err
}

func (d *document) state() (*state, error) {
	s := newState()
	for subnet, a := range d.Last {
		s.last[subnet] = a
	}
	for _, a := range d.Allocations {
		if err := a.validate(); err != nil {
			return nil, fmt.Errorf("decode ledger: %w", err)
		}
		r, err := newRecord(a)
		if err != nil {
			return nil, fmt.Errorf("decode ledger: %w", err)
		}
		if err := s.insert(r); err != nil {
			return nil, fmt.Errorf("decode ledger: %w", err)
		}
	}
	for _, c := range d.Cooling {
		i, found := findSlot(s.slots, c.Address)
		if found || !plain(c.Address) || c.Released.IsZero() {
			return nil, fmt.Errorf("decode ledger: cooling address %s is invalid, held or listed twice", c.Address)
		}
		if year := c.Released.UTC().Year(); year < 0 || year > 9999 { // encode's form has no other
			return nil, fmt.Errorf("decode ledger: cooling address %s was released in the year %d", c.Address, year)
		}
		s.slots = slices.Insert(s.slots, i, slot{c.Address, c.Released})
	}
	return s, nil
}

// validate refuses a record that no Release or Usage could find again.
func (a Allocation) validate() error {
	if a.Key == (Key{}) || len(a.Addresses) == 0 {
		return fmt.Errorf("allocation of %s lacks a key or an address", a.Key)
	}
	for _, p := range a.Addresses {
		if !p.IsValid() || !plain(p.Addr()) {
			return fmt.Errorf("allocation of %s has an invalid address", a.Key)
		}
	}
	return nil
}

// plain says that an address is in the one form that it is compared in:
// ::ffff:10.5.1.2 is 10.5.1.2 to a pod, and another address to netip.
func plain(a netip.Addr) bool { return a.IsValid() && !a.Is4In6() && a.Zone() == "" }

// write replaces the file atomically. It leaves the old one when it fails.
// between is called when the new one is written beside it.
func write(path string, content []byte, between func()) error {
	f, err := renameio.NewPendingFile(path, renameio.WithTempDir(filepath.Dir(path)), renameio.WithPermissions(0o600))
	if err != nil {
		return fmt.Errorf("write ledger %s: %w", path, err)
	}
	defer func() { _ = f.Cleanup() }() // nothing once it has taken its place
	if _, err := f.Write(content); err != nil {
		return fmt.Errorf("write ledger %s: %w", path, err)
	}
	between()
	if err := f.CloseAtomicallyReplace(); err != nil {
		return fmt.Errorf("write ledger %s: %w", path, err)
	}
	return nil
}

// setAside renames a damaged file so that a person can look at it.
func setAside(path string, now time.Time) (string, error) {
	aside := fmt.Sprintf("%s.damaged-%d", path, now.UnixNano())
	if err := os.Rename(path, aside); err != nil {
		return "", fmt.Errorf("set damaged ledger aside: %w", err)
	}
	return aside, nil
}

// sweep removes what a write leaves behind when the process is killed in the
// middle of it: a hidden file named after the ledger and digits. On a tmpfs
// such files would eat memory until the next boot.
func sweep(path string) error {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("look for leftovers of ledger writes: %w", err)
	}
	for _, e := range entries {
		digits, ours := strings.CutPrefix(e.Name(), "."+filepath.Base(path))
		if !ours || digits == "" || strings.Trim(digits, "0123456789") != "" {
			continue
		}
		if err := os.Remove(filepath.Join(filepath.Dir(path), e.Name())); err != nil {
			return fmt.Errorf("remove leftover of a ledger write: %w", err)
		}
	}
	return nil
}
