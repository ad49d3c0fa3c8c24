package doctor

import (
	"cmp"
	"fmt"
	"slices"
)

// Severity says how bad a finding is.
type Severity string

// The severities, the worst first.
const (
	// Error: pods are, or would be, without network.
	Error Severity = "error"
	// Warning: it works, and will not under some load or after some event.
	Warning Severity = "warning"
	// Info: worth knowing.
	Info Severity = "info"
	// OK: looked at and well.
	OK Severity = "ok"
)

func (s Severity) rank() int { return slices.Index([]Severity{Error, Warning, Info, OK}, s) }

// Finding is one thing that was looked at.
type Finding struct {
	Code     string   `json:"code"`
	Severity Severity `json:"severity"`
	// Text says what is wrong, in a sentence.
	Text string `json:"text"`
	// Evidence are the actual values.
	Evidence string `json:"evidence,omitempty"`
	// Fix is what repairs it, where possible a command to paste.
	Fix string `json:"fix,omitempty"`
}

// Failed reports whether an error is among the findings.
func Failed(all []Finding) bool {
	return slices.ContainsFunc(all, func(f Finding) bool { return f.Severity == Error })
}

// Judge makes findings of facts, the worst first. It is pure.
func Judge(f Facts) []Finding {
	j := &judge{Facts: f}
	j.daemon()
	j.kernel()
	j.firewall()
	j.settings()
	j.tables()
	j.sizes()
	j.directories()
	j.cni()
	j.devices()
	j.records()
	slices.SortStableFunc(j.all, func(a, b Finding) int { return cmp.Compare(a.Severity.rank(), b.Severity.rank()) })
	return j.all
}

type judge struct {
	Facts
	all []Finding
}

// found notes a finding. What is well has no fix.
func (j *judge) found(severity Severity, code, text, evidence, fix string) {
	j.all = append(j.all, Finding{code, severity, text, evidence, fix})
}

func (j *judge) ok(code, format string, args ...any) {
	j.found(OK, code, fmt.Sprintf(format, args...), "", "")
}

func (j *judge) info(code, text, evidence string) { j.found(Info, code, text, evidence, "") }
