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

// TestPortThatLeftBetweenTheLists: links and ports are two lists. A pod that
// went between them is no port that somebody has changed.
func TestPortThatLeftBetweenTheLists(t *testing.T) {
	k := &Linux{opts: LinuxOptions{Name: "tenure"}}
	s := State{Links: map[string]Link{
		"tenure0": {Kind: KindBridge}, "br1": {Kind: KindBridge}, "up0": {Kind: "veth"},
		"ten1": {Kind: "veth", Master: "tenure0"}, "ten2": {Kind: "veth", Master: "tenure0"}, "tenure.1": {Kind: KindVxlan, Master: "br1"},
	}}
	k.leftBridge(&s, map[string]bool{"ten1": true})
	for name, there := range map[string]bool{"tenure0": true, "br1": true, "up0": true, "ten1": true, "ten2": false, "tenure.1": true} {
		if _, ok := s.Links[name]; ok != there {
			t.Errorf("%s is there: %t", name, ok)
		}
	}
	if s.Links["tenure.1"].Master != "" || s.Links["ten1"].Master != "tenure0" {
		t.Errorf("links %+v", s.Links)
	}
}
