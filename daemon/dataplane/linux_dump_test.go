package dataplane

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestDumpP1IsReadAgain(t *testing.T) {
	for _, c := range []struct {
		name  string
		torn  int
		then  error
		tries int
		fails bool
	}{
		{"whole at once", 0, nil, 1, false},
		{"torn thrice", 3, nil, 4, false},
		{"torn for ever", 1000, nil, dumpTries, true},
		{"refused", 0, unix.EPERM, 1, true},
	} {
		tries := 0
		got, err := dump("things", func() ([]int, error) {
			if tries++; tries <= c.torn {
				return []int{1}, netlink.ErrDumpInterrupted
			}
			return []int{1, 2}, c.then
		})
		if (err != nil) != c.fails || tries != c.tries {
			t.Errorf("%s: error %v after %d tries", c.name, err, tries)
		}
		if err == nil && len(got) != 2 || err != nil && got != nil {
			t.Errorf("%s: got %v", c.name, got)
		}
		if c.then != nil && !errors.Is(err, c.then) {
			t.Errorf("%s: cause is lost in %v", c.name, err)
		}
	}
}
