package conf

import (
	"fmt"
	"strings"
	"unicode"
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

// A configuration is written by others and quoted where it is wrong: how many
// faults an error names, which are more than there are settings, and how much is
// kept of a place and of a text, in bytes.
const (
	faultsMost = 64
	fieldMost  = 300 // a file's path and a setting
	textMost   = 400
)

func (f Faults) Error() string {
	if len(f) == 1 {
		return f[0].String()
	}
	var texts []string
	for _, fault := range f[:min(len(f), faultsMost)] {
		texts = append(texts, fault.String())
	}
	if more := len(f) - len(texts); more > 0 {
		texts = append(texts, fmt.Sprintf("%d more", more))
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
	*f = append(*f, Fault{Field: Short(field, fieldMost), Text: Short(fmt.Sprintf(format, args...), textMost)})
}

// Short is a text that others wrote, fit to be shown: so many bytes at most and
// a mark where there was more, in one line, and nothing that would not be seen or
// would move a terminal's cursor.
func Short(text string, most int) string {
	const instead = unicode.ReplacementChar
	cut := len(text) > most
	if cut {
		text = text[:most]
	}
	text = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return instead
		}
		return r
	}, strings.ToValidUTF8(text, string(instead)))
	if len(text) > most { // what stands instead of a byte has three
		text, cut = strings.ToValidUTF8(text[:most], ""), true
	}
	if cut {
		text += "…"
	}
	return text
}
