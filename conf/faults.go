package conf

import (
	"fmt"
	"strings"
)

// Fault is one thing that is wrong with a configuration.
type Fault struct {
	// Field names the place: a key such as SubnetMin or Backend.VNI, or for a
	// daemon setting its source, such as "flag --name".
	Field string
	// Text says what is wrong there.
	Text string
}

func (f Fault) String() string { return f.Field + ": " + f.Text }

// Faults is everything that is wrong with a configuration, in the order of its
// fields. As an error it is never empty.
type Faults []Fault

func (f Faults) Error() string {
	if len(f) == 1 {
		return f[0].String()
	}
	texts := make([]string, len(f))
	for i, fault := range f {
		texts[i] = fault.String()
	}
	return fmt.Sprintf("%d faults: %s", len(f), strings.Join(texts, "; "))
}

// Err returns f as an error, nil if there is no fault.
func (f Faults) Err() error {
	if len(f) == 0 {
		return nil
	}
	return f
}

func (f *Faults) add(field, format string, args ...any) {
	*f = append(*f, Fault{Field: field, Text: fmt.Sprintf(format, args...)})
}
