package ownership

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Judge names everything in the evidence that must not be, in the order of
// time as far as there is one. Of many violations of one kind by the same nodes
// the first is named, with how many there are. It is pure; nothing found is nil.
func Judge(e Evidence) []Violation {
	var c counter
	s := spansOf(e)
	judgeWrites(e, c.add)
	judgePackets(e.Packets, s, c.add)
	judgeFences(e, s, c.add)
	judgeUse(s, c.add)
	judgeOps(e, c.add)
	return c.all()
}

// counter keeps the first violation of each kind.
type counter struct {
	order []finding
	found map[finding]*counted
}

// finding is what makes two violations the same one.
type finding struct {
	rule         Rule
	subnet, whom string
}

type counted struct {
	first Violation
	n     int
}

// add notes a violation; whom tells it from others of its rule and subnet.
func (c *counter) add(v Violation, whom string) {
	if c.found == nil {
		c.found = map[finding]*counted{}
	}
	f := finding{v.Rule, v.Subnet, whom}
	seen := c.found[f]
	if seen == nil {
		seen = &counted{first: v}
		c.found[f] = seen
		c.order = append(c.order, f)
	}
	seen.n++
	if v.At > 0 && v.At < seen.first.At {
		seen.first = v
	}
}

func (c *counter) all() []Violation {
	var all []Violation
	for _, f := range c.order {
		v := c.found[f].first
		if n := c.found[f].n; n > 1 {
			v.Text += fmt.Sprintf(" (and %d more)", n-1)
		}
		all = append(all, v)
	}
	slices.SortStableFunc(all, func(a, b Violation) int { return cmp.Compare(a.At, b.At) })
	return all
}

// report takes what is found; see counter.add.
type report func(v Violation, whom string)

// stamp is an instant as people compare it: seconds of CLOCK_BOOTTIME.
func stamp(t time.Duration) string { return fmt.Sprintf("%.3fs", t.Seconds()) }
