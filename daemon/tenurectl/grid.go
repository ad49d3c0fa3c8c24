package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/lease"
)

// How many characters a map has at most, and how many a line of it.
const (
	cellsUsual = 2048
	cellsWide  = 65536
	cellsLine  = 64
)

// cell is what one character of the map stands for: one subnet or several.
type cell struct {
	size, held, dying, reserved uint64
	mine                        bool
}

// sign is the character. This node's own and what is dying are seen in a
// crowd; of the rest it says how full the cell is.
func (c cell) sign() byte {
	taken := c.held + c.dying + c.reserved
	switch {
	case c.mine:
		return '@'
	case c.dying > 0:
		return '!'
	case taken == 0:
		return '.'
	case c.reserved == taken:
		return 'r'
	case taken == c.size:
		return '#'
	case taken*2 > c.size:
		return '+'
	}
	return ':'
}

// perCell is how many subnets one of at most most cells stands for: a power of
// two, so that a cell is a prefix where the network's first subnet is one.
func perCell(total, most uint64) uint64 {
	size := uint64(1)
	for (total-1)/size >= most {
		size *= 2
	}
	return size
}

// cells divides the map into cells of that many subnets. It is pure.
func cells(m lease.Map, size uint64) []cell {
	total := m.Counts.Total
	all := make([]cell, (total-1)/size+1)
	for i := range all {
		all[i].size = min(size, total-uint64(i)*size)
	}
	for _, r := range m.Runs {
		for from, end := r.From, r.From+r.Count; from < end; {
			i := from / size
			n := min(end, (i+1)*size) - from
			all[i].add(r, n)
			from += n
		}
	}
	return all
}

func (c *cell) add(r lease.Run, n uint64) {
	switch r.State {
	case api.SubnetReserved:
		c.reserved += n
	case api.SubnetDying, api.SubnetReleased:
		c.dying += n
	default:
		c.held += n
	}
	c.mine = c.mine || r.Mine
}

// drawMap writes the grid of at most that many cells, the legend and the counts.
func drawMap(w io.Writer, m lease.Map, most int, colour bool) error {
	c := m.Counts
	size := perCell(c.Total, uint64(most))
	all := cells(m, size)
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %d subnets of /%d, from %s to %s\n\n", m.Network, c.Total, m.SubnetLen, m.First, m.Last)
	label := 0
	for i := 0; i < len(all); i += cellsLine {
		label = max(label, len(m.Config.SubnetAt(uint64(i)*size).Addr().String()))
	}
	for i := 0; i < len(all); i += cellsLine {
		fmt.Fprintf(&b, "%-*s  ", label, m.Config.SubnetAt(uint64(i)*size).Addr())
		for _, c := range all[i:min(len(all), i+cellsLine)] {
			b.WriteString(paint(c.sign(), colour))
		}
		b.WriteByte('\n')
	}
	b.WriteByte('\n')
	for _, l := range legend(c, size) {
		fmt.Fprintf(&b, "%s %s\n", paint(l.sign, colour), l.text)
	}
	if size > 1 {
		fmt.Fprintf(&b, "one character is %d subnets\n", size)
	}
	if c.Outside > 0 {
		fmt.Fprintf(&b, "%d records lie outside of these: tenurectl leases\n", c.Outside)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

type legendLine struct {
	sign byte
	text string
}

func legend(c api.SubnetCounts, size uint64) []legendLine {
	if size == 1 {
		return []legendLine{
			{'@', fmt.Sprintf("this node's: %d", c.Mine)},
			{'#', fmt.Sprintf("held: %d in all", c.Held)},
			{'!', fmt.Sprintf("dying, or released by force: %d", c.Dying)},
			{'r', fmt.Sprintf("reserved: %d", c.Reserved)},
			{'.', fmt.Sprintf("free: %d", c.Free)},
		}
	}
	return []legendLine{
		{'@', fmt.Sprintf("this node's among them: %d", c.Mine)},
		{'!', fmt.Sprintf("dying ones, or ones released by force, among them: %d", c.Dying)},
		{'#', fmt.Sprintf("none of them free; held: %d in all", c.Held)},
		{'+', "more than half of them taken"},
		{':', "some of them taken"},
		{'r', fmt.Sprintf("all that are taken are reserved: %d", c.Reserved)},
		{'.', fmt.Sprintf("all free: %d", c.Free)},
	}
}

// paint colours a sign for a terminal.
func paint(sign byte, colour bool) string {
	codes := map[byte]string{'@': "1;36", '#': "32", '+': "32", ':': "32", '!': "1;31", 'r': "33", '.': "2"}
	if !colour {
		return string(sign)
	}
	return "\x1b[" + codes[sign] + "m" + string(sign) + "\x1b[0m"
}
