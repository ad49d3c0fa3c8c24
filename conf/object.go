package conf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// member is one name and value of a JSON object.
type member struct {
	name string
	raw  json.RawMessage
}

// null tells whether the member stands for "not given".
func (m member) null() bool { return bytes.Equal(bytes.TrimSpace(m.raw), []byte("null")) }

// readObject splits a JSON object into its members, in their order and with
// repeated names kept: encoding/json would let the last one win silently.
func readObject(b []byte) ([]member, error) {
	dec := json.NewDecoder(bytes.NewReader(b))
	open, err := dec.Token()
	if errors.Is(err, io.EOF) {
		return nil, errors.New("empty, want a JSON object")
	}
	if err != nil {
		return nil, fmt.Errorf("not JSON: %w", err)
	}
	if open != json.Delim('{') {
		return nil, fmt.Errorf("want a JSON object, got %s", bytes.TrimSpace(b))
	}
	var members []member
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return nil, fmt.Errorf("not JSON: %w", err)
		}
		m := member{name: fmt.Sprint(name)}
		if err := dec.Decode(&m.raw); err != nil {
			return nil, fmt.Errorf("not JSON: %w", err)
		}
		members = append(members, m)
	}
	if _, err := dec.Token(); err != nil {
		return nil, fmt.Errorf("not JSON: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the JSON object")
	}
	return members, nil
}

// slot is a key that an object may have and where its value goes.
type slot struct {
	name string
	into any
}

// fill decodes the JSON object b into slots. Names are matched without regard
// to case, as flannel does; null leaves the slot as it is. What does not fit
// is added to faults with the prefix before the field's name. It is false if b
// is no object at all.
func fill(b []byte, prefix string, slots []slot, faults *Faults) bool {
	members, err := readObject(b)
	if err != nil {
		whole := strings.TrimSuffix(prefix, ".")
		if whole == "" {
			whole = "document"
		}
		faults.add(whole, "%v", err)
		return false
	}
	seen := make(map[string]bool, len(members))
	for _, m := range members {
		i := slices.IndexFunc(slots, func(s slot) bool { return strings.EqualFold(s.name, m.name) })
		if i < 0 {
			place := prefix + m.name
			if place == "" {
				place = `""` // JSON has such a name too
			}
			faults.add(place, "unknown field")
			continue
		}
		s := slots[i]
		if seen[s.name] {
			faults.add(prefix+s.name, "given twice")
			continue
		}
		seen[s.name] = true
		if m.null() {
			continue
		}
		if err := json.Unmarshal(m.raw, s.into); err != nil {
			faults.add(prefix+s.name, "want %s, got %s", kind(s.into), m.raw)
		}
	}
	return true
}

// kind names the JSON type that a slot takes.
func kind(into any) string {
	switch into.(type) {
	case **string, *string:
		return "a string"
	case *bool:
		return "true or false"
	case **int, *int:
		return "a whole number"
	default:
		return fmt.Sprintf("a value that fits %T", into)
	}
}
