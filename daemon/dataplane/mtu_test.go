package dataplane_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tenure-cni/tenure/daemon/dataplane"
)

// txChecksum is row K1: off from the first packet on, whatever somebody does to
// the device, and on where that is wanted.
func txChecksum(t *testing.T, m *machine) {
	want := node34(peer(35))
	ops := m.converge(t, want)
	lines := strings.Split(text(ops), "\n")
	off, up := slices.Index(lines, "link set tenure.1 tx-checksum off"), slices.Index(lines, "link set tenure.1 up")
	if off < 0 || up < off {
		t.Errorf("checksums are off after the device is up:\n%s", text(ops))
	}
	is := func(when string, on bool) {
		t.Helper()
		if got, ok := m.read(t).TxChecksum[overlay]; !ok || got != on {
			t.Errorf("%s: checksums left to the hardware %t (known %t), want %t", when, got, ok, on)
		}
	}
	is("created", false)
	m.change(t, dataplane.DelLink{Link: overlay})
	m.converge(t, want)
	is("made anew", false)
	m.change(t, dataplane.SetDown{Link: overlay})
	m.converge(t, want)
	is("down and up", false)
	m.change(t, dataplane.SetTxChecksum{Link: overlay, On: true})
	if ops := m.converge(t, want); text(ops) != "link set tenure.1 tx-checksum off" {
		t.Errorf("turned on by somebody, repaired with\n%s", text(ops))
	}
	is("turned on by somebody", false)
	want.Overlays[0].TxChecksum = true
	if ops := m.converge(t, want); text(ops) != "link set tenure.1 tx-checksum on" {
		t.Errorf("wanted now:\n%s", text(ops))
	}
	is("wanted", true)
	m.change(t, dataplane.DelLink{Link: overlay})
	m.converge(t, want)
	is("wanted, and made anew", true)
}

// mtuFollows is row K3: overlay and bridge follow in one pass, without anything
// else being touched.
func mtuFollows(t *testing.T, m *machine) {
	want := node34(peer(35))
	m.converge(t, want)
	for _, mtu := range []int{8950, 1350, 1450} {
		if m.ns != nil { // a device has no more than the one below it
			m.sh(t, "ip link set %s mtu %d", underlay, mtu+50)
		}
		want.Bridge.MTU, want.Overlays[0].MTU = mtu, mtu
		if ops := m.converge(t, want); text(ops) != fmt.Sprintf("link set tenure0 mtu %d\nlink set tenure.1 mtu %[1]d", mtu) {
			t.Errorf("MTU %d: wrote\n%s", mtu, text(ops))
		}
		s := m.read(t)
		if s.Links[overlay].MTU != mtu || s.Links[bridge].MTU != mtu {
			t.Errorf("MTU %d: overlay %d, bridge %d", mtu, s.Links[overlay].MTU, s.Links[bridge].MTU)
		}
	}
}

// clamp is row K5: the rules are there while they are wanted, follow the size,
// and come back.
func clamp(t *testing.T, m *machine) {
	mss := dataplane.Chain{Table: "mangle", Name: "TENURE-MSS"}
	forward := dataplane.Chain{Table: "mangle", Name: "FORWARD"}
	want := node34(peer(35))
	m.converge(t, want)
	for _, size := range []int{1450, 1250} {
		want.Clamp = size
		if ops := m.converge(t, want); len(ops) != 1 {
			t.Errorf("%d: wrote\n%s", size, text(ops))
		}
		r := m.read(t).Rules
		if rules := strings.Join(r.Chains[mss], "\n"); len(r.Chains[mss]) != 4 || strings.Count(rules, fmt.Sprintf("--set-mss %d", size-40)) != 2 ||
			strings.Count(rules, "--clamp-mss-to-pmtu") != 2 || strings.Count(rules, "-s 10.5.0.0/16") != 2 || strings.Count(rules, "-d 10.5.0.0/16") != 2 || len(r.Jumps[forward]) != 1 {
			t.Errorf("%d: rules\n%s\njumps %v", size, rules, r.Jumps[forward])
		}
	}
	empty := dataplane.TableEdit{Table: "mangle", Fill: []dataplane.ChainRules{{Chain: mss.Name}}}
	m.change(t, dataplane.SetRules{Tables: []dataplane.TableEdit{empty}})
	if ops := m.converge(t, want); len(ops) != 1 {
		t.Errorf("emptied: wrote\n%s", text(ops))
	}
	want.Clamp = 0
	m.converge(t, want)
	if r := m.read(t).Rules; r.Chains[mss] != nil || len(r.Jumps[forward]) != 0 {
		t.Errorf("left over: %v, %v", r.Chains[mss], r.Jumps[forward])
	}
}
