package dataplane

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// PeerState says how far a peer is programmed.
type PeerState string

// The states of a peer in the kernel.
const (
	// PeerProgrammed: read back from the kernel, nothing is missing.
	PeerProgrammed PeerState = "programmed"
	// PeerPending: being written, or failed and to be tried again.
	PeerPending PeerState = "pending"
	// PeerConflict: something of others is in the way.
	PeerConflict PeerState = "conflict"
	// PeerUnreachable: nothing leads to it from here.
	PeerUnreachable PeerState = "unreachable"
)

// PeerReport is the standing of one peer.
type PeerReport struct {
	Peer   Peer
	State  PeerState
	Reason string
	// Direct: what leads to it is a plain route.
	Direct bool
}

// Report is the outcome of the latest pass, and counts since the start.
type Report struct {
	// Converged: the kernel was read and nothing had to be written for the
	// newest Desired, without any error.
	Converged bool
	// Peers are in the order of Desired.
	Peers []PeerReport
	// Kept are peers that only the kernel knows; see Desired.KeepPeers.
	Kept      []PeerReport
	Conflicts []Conflict
	// Fights are what had to be repaired again and again of late.
	Fights []Fight
	// Faults are what could not be read or written in the latest pass.
	Faults []Fault
	// Err is the first fault of the latest pass, nil without one.
	Err error
	// Passes counts passes.
	Passes uint64
	// Writes counts successful changes by Op.Kind.
	Writes map[string]uint64
}

// TotalWrites is the sum over all kinds.
func (r Report) TotalWrites() uint64 {
	var n uint64
	for _, w := range r.Writes {
		n += w
	}
	return n
}

func (r Report) clone() Report {
	r.Peers, r.Kept = slices.Clone(r.Peers), slices.Clone(r.Kept)
	r.Conflicts = slices.Clone(r.Conflicts)
	r.Fights = slices.Clone(r.Fights)
	r.Faults = slices.Clone(r.Faults)
	r.Writes = maps.Clone(r.Writes)
	return r
}

// failure is an operation that did not succeed, or was left out because of
// an earlier one.
type failure struct {
	op  Op
	err error
}

func (f failure) fault() Fault { return Fault{f.op.String(), f.err.Error()} }

// peerReports judges each peer by the plan: it is programmed when the state
// that was read left nothing to do for it.
func peerReports(p *planner, peers []Peer, failed []failure) []PeerReport {
	why := p.pendingReasons(failed)
	out := make([]PeerReport, 0, len(peers))
	for _, peer := range peers {
		r := PeerReport{Peer: peer, State: PeerProgrammed, Direct: p.directly[peer.Subnet]}
		if p.far[peer] {
			r.State, r.Reason = PeerUnreachable, p.noWay[peer]
		} else if reason, rejected := p.rejected[peer]; rejected {
			r.State, r.Reason = PeerConflict, reason
		} else if reason := why(peer); reason != "" {
			r.State, r.Reason = PeerPending, reason
		}
		out = append(out, r)
	}
	return out
}

// pendingReasons returns what says why a peer is not programmed: what keeps
// all of them from it, or what failed for this one, or what is being done.
func (p *planner) pendingReasons(failed []failure) func(Peer) string {
	failures := map[string]string{}
	for _, f := range failed {
		if _, earlier := failures[f.op.Scope]; !earlier {
			failures[f.op.Scope] = fmt.Sprintf("%s: %v", f.op, f.err)
		}
	}
	planned := make(map[string]Op, len(p.ops))
	for _, op := range p.ops {
		planned[op.Scope] = op
	}
	return func(peer Peer) string {
		if why := p.noWay[peer]; why != "" {
			return why
		}
		device := vxlanScope(peer.Subnet.Addr())
		scopes := []string{peerScope(peer.Subnet), device}
		blocked := p.blocked[device]
		if p.directly[peer.Subnet] {
			scopes, blocked = []string{p.up.peerScope(peer.Subnet), p.up.scope()}, ""
		}
		if len(p.ops) == 0 || blocked != "" { // then nothing failed either
			return blocked
		}
		if why := cmp.Or(failures[scopes[1]], failures[scopes[0]]); why != "" {
			return why
		}
		for _, scope := range scopes {
			if op, ok := planned[scope]; ok {
				return "being programmed: " + op.String()
			}
		}
		return ""
	}
}
