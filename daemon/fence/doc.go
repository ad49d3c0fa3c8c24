// Package fence is the kernel's half of the promise that a subnet has one
// tenant: a deadline that the kernel enforces by itself, with the daemon
// stopped, hung, killed or cut off.
//
// It owns the tc-BPF programs, their maps and their filters, and nothing else
// on a device. It promises that no frame of pod traffic crosses a fenced
// device at or after the deadline F, that nothing but Arm moves F to a later
// time, and that what is in force outlives the process. It must not import the
// lease (it is told F, it does not judge leases), etcd, or the data plane.
//
// Package lease computes F and says when; its documentation is the other half
// of the argument. This half begins with F as a number.
//
// # The clock
//
// F is an absolute reading of CLOCK_BOOTTIME. The daemon computes it from a
// reading taken before the request was sent:
//
//	          node      etcd       proof     Arm(F)     kernel        etcd may give
//	          reads     renews     holds     writes     shuts         the subnet away
//	          t0        at r       at r′     F          at F          from r + TTL
//	          │         │          │         │          │             │
//	BOOTTIME ─┼─────────┼──────────┼─────────┼──────────┼──────┼──────┼──▶
//	          │                                         │      │
//	          │                                         F    t0 + TTL
//	          │◀───────────── TTL − margin ────────────▶│      │
//	          │                                         │margin│
//	          │◀──────────────────── TTL ─────────────────────▶│
//
// etcd counts TTL from r, and r is not before t0; so F is at least the margin
// before anything can happen to the subnet. The margin pays for clocks that run
// at slightly different speeds and for frames already judged.
//
// The program compares, for every frame, two 64-bit numbers as unsigned:
// bpf_ktime_get_boot_ns(), read first, and F. Now ≥ F drops. Nothing else is
// asked: not the wall clock, not a timer, not the daemon.
//
// It is BOOTTIME because of what the others do. CLOCK_REALTIME can be set, and
// a step back would lengthen a lease. CLOCK_MONOTONIC stands still while the
// machine is suspended, and etcd's does not: a laptop closed for a day would
// wake with its fence open. BOOTTIME counts suspended time, nobody can set it,
// and after a boot it starts anew, as the maps do: shut. A process in a time
// namespace reads it with an offset, and the program never does; Open refuses
// to work there (ErrClock).
//
// # What a stopped daemon can and cannot do
//
// A daemon that is stopped, swapped out or hung anywhere on the line above
// writes the same F when it goes on, however late; by then F may be past, and
// it opens nothing. The steps in which it can stop, and what holds meanwhile:
//
//	stopped                  in force           when it goes on
//	before t0                the F before       an ordinary cycle
//	t0 … before Arm          the F before       Arm writes F; if F has passed, shut stays shut
//	between Close or CutTo   F as cut           Arm is of an older Generation: ErrSuperseded
//	  and an Arm in flight
//	changing the subnet      F = 0              Set goes on; F comes last, with Arm
//	after Arm                F                  the kernel has shut at F by itself
//	killed, at any time      what was in force  the next process finds it through the filters
//
// It cannot lengthen what it has not proven, open what it has closed, or keep
// the kernel from shutting. It can fail to close before F when a subnet is
// lost early (a key deleted by hand): then F closes.
//
// # Why no moment is open that should not be
//
// A program reads the clock first, then F, and drops if now ≥ F. F and the
// addresses it was proven for are one object, the state. It hangs in the one
// slot of a map of maps:
//
//	filters ──▶ programs ──▶ tenure_live_1[0] ──▶ tenure_state_1
//	(per device)                                  │ F        one 64-bit word
//	                                              │ Network  never change while
//	                                              │ subnet   programs can see them
//
// What follows from that, and from what the daemon may do:
//
//   - Arm, CutTo and Close change only F, by one aligned 64-bit store to the
//     memory of the map, which the process has mapped. The programs load it
//     with one instruction. No reader sees half an F (a write by system call
//     copies bytes without promising that), and closing cannot fail.
//   - Set makes a new state, complete before anybody sees it, and swaps it in.
//     A program that runs meanwhile judges by the old one or by the new one,
//     never by F of the one and addresses of the other. This is needed even
//     though a change of subnet sets F to 0 first: a program may have read F
//     just before and still be about to read the addresses. The kernel answers
//     the swap only after an RCU grace period, so when Set returns no frame is
//     being judged by the old state any more.
//   - A change of subnet leaves the new state at F = 0 until Arm. A change of
//     Network alone (it was widened) carries F over, because F was proven for
//     the subnet, and costs no frame.
//   - Every write of the maps holds one mutex. Close, CutTo and a change of
//     subnet start a new Generation, and Arm refuses any other: a cycle in
//     flight that proved something about the time before cannot reopen, nor
//     lengthen past a cut.
//   - Attach writes no map. A device that is attached anew joins the state that
//     stands; since F is absolute, it can only be shut at the same time as the
//     others. On an upgrade the kernel exchanges the program in one step.
//
// # What a frame meets on the vxlan device
//
//	              out (clsact egress)             in (clsact ingress)
//	Closed        now ≥ F                         now ≥ F
//	Protocol      not a whole, untagged IPv4 or IPv6 frame, in both directions
//	Token                                         sender's MAC is not a peer's
//	Source        inside Network, not in the
//	              live subnet: a stranded pod
//	Destination                                   inside Network, not in the
//	                                              live subnet: transit
//	pass          what is left                    what is left
//
// ARP is dropped: every neighbour on the device is a permanent entry, so nobody
// needs it. A VLAN tag is dropped whether it is in the bytes or beside them in
// the skb, where a frame looks like plain IP. Sources outside Network are
// masqueraded or the host's own and pass while F is ahead.
//
// A family that has no Network has no pod addresses that two tenants could
// share: its addresses are not judged, but it is shut at F, and needs a token,
// like the other. A family that has a Network and no live subnet is at home
// nowhere: all of Network is dropped.
//
// Passing is TC_ACT_UNSPEC, "no verdict", so that filters behind the fence
// still run; TC_ACT_OK would end the walk and disable them.
//
// # On the uplink
//
// With direct routes, AttachUplink puts a second form of the program on the
// host's own device. It judges a packet only if both its addresses lie in
// Network, by F and by Source or Destination, and passes all else, understood
// or not; so a device without Ethernet headers, of whose packets it would
// understand none, is refused (ErrNoEthernet). There is no token there: an
// earlier tenant that believes in a wrong clock is not caught by its receivers.
//
// # Attaching, and finding it again
//
// Nothing is pinned: the filters hold the programs and the programs the maps,
// so all of it lives as long as the device. Open goes from a filter to its
// program to that program's maps, and knows them by name, type and sizes; the
// number in the names is the layout. Without names it looks at every device:
// where there are direct routes only, the maps hang on an uplink that is not
// known yet. Maps of another layout are left alone and new ones made, shut. The
// old ones stay in force on the device until Attach replaces the filter, so
// Attach comes before everything else after Open. A state that is damaged gives
// way to a shut one at once.
//
// Attached compares the kernel's hash of the instructions and the identity of
// the maps with what this build has loaded, and wants nobody else's filter
// ahead: one that ends the walk would let frames past. Attach puts the fence
// ahead again, by a second filter under its other handle, before it removes the
// first. A filter or qdisc of others is never changed. Where Attach fails, or
// Open does, the device has to be down; Bare finds it without a program.
//
// # What it does not hold
//
// A pause of the whole machine that stops this clock too (a virtual machine
// halted by its host) is not seen: afterwards BOOTTIME goes on where it stood,
// F is as far ahead as before, and the subnet may be another's. Then the
// receivers hold: the sender's MAC is the token of an ownership, the later one
// has another, and every node that knows of it drops the earlier one's frames.
// Direct routes carry no token: there, nothing covers such a pause.
//
// Root on the host can go around the fence: a filter put ahead of it, until the
// next look; a tcx program; a packet socket with PACKET_QDISC_BYPASS; a write
// to the maps. The store of F is one store on 64-bit machines only.
package fence
