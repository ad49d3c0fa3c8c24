package fence

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// direction is the way a frame goes on the device, as the node sees it.
type direction int

const (
	outward direction = iota // clsact egress: from this node to others
	inward                   // clsact ingress: from others to this node
	directions
)

// form is what the device is to us.
type form int

const (
	overlay form = iota // a vxlan device of ours: all that is not allowed is dropped
	uplink              // the host's own device: only packets within Network are judged
	forms
)

// programName is also the filter's. Both begin alike for every form, see
// namePrefix.
func programName(k form, d direction) string {
	name := namePrefix
	if k == uplink {
		name += "up_"
	}
	if d == inward {
		return name + "in"
	}
	return name + "out"
}

// namePrefix marks filters of Tenure, of this instance or another.
const namePrefix = "tenure_"

// What the program knows of frames and of the kernel's ABI.
const (
	skbProtocol    = 16 // offsets in struct __sk_buff
	skbVlanPresent = 20
	skbVlanTCI     = 24
	vlanID         = 0x0fff

	ethLen        = 14
	ethSource     = 6
	ethType       = 12
	etherTypeIPv4 = 0x0800
	etherTypeIPv6 = 0x86dd

	ipv4Len, ipv4Source, ipv4Destination = 20, 12, 16
	ipv6Len, ipv6Source, ipv6Destination = 40, 8, 24

	actUnspec = -1 // no verdict: the filters behind this one are asked
	actShot   = 2  // drop
)

// Where the program keeps things. R6 to R9 outlive calls of helpers.
const (
	regSkb    = asm.R6 // struct __sk_buff
	regNow    = asm.R7 // CLOCK_BOOTTIME in nanoseconds
	regState  = asm.R8 // the state object's value
	regReason = asm.R9 // why the next test that fails drops

	frameAt = -16 // on the stack: the Ethernet header
	ipAt    = -56 // the IP header, 4-aligned
	keyAt   = -60 // a 32-bit map key
)

// program is the fence of one direction on a device of one form. It never
// reads the packet through pointers: bpf_skb_load_bytes also finds what is not
// in the linear part, and fails where the frame ends too soon.
func program(k form, d direction, m *sharedMaps) asm.Instructions {
	if k == uplink {
		return uplinkProgram(d, m)
	}
	return overlayProgram(d, m)
}

// overlayProgram drops what it does not understand.
func overlayProgram(d direction, m *sharedMaps) asm.Instructions {
	p := join(begin(m, "drop"), judgeDeadline(), judgeFrame())
	if d == inward {
		p = append(p, judgeToken(m)...)
	}
	p = append(p, join(asm.Instructions{asm.Mov.Imm(regReason, int32(Protocol))}, chooseFamily("drop"))...)
	for _, v := range versions() {
		p = append(p, join(
			v.load("drop"),
			v.judgeHome(d),
		)...)
	}
	return append(p, verdicts(m)...)
}

// uplinkProgram passes what it does not understand: the device carries the
// host's own traffic. A tag with a VLAN ID is another network's; a tag with ID
// 0 is only a priority, and the receiver takes the frame for untagged.
func uplinkProgram(d direction, m *sharedMaps) asm.Instructions {
	p := join(begin(m, "pass"), asm.Instructions{
		asm.LoadMem(asm.R1, regSkb, skbVlanTCI, asm.Word),
		asm.And.Imm(asm.R1, vlanID),
		asm.JNE.Imm(asm.R1, 0, "pass"),
	}, loadBytes(0, frameAt, ethLen, "pass"), chooseFamily("pass"))
	for _, v := range versions() {
		p = append(p, join(
			v.load("pass"),
			v.inside(v.source, v.network, "pass"),
			v.inside(v.destination, v.network, "pass"),
			judgeDeadline(),
			v.judgeHome(d),
		)...)
	}
	return append(p, verdicts(m)...)
}

func join(parts ...asm.Instructions) asm.Instructions { return slices.Concat(parts...) }

// begin reads the clock before anything else, so that whatever comes between
// can only make a frame look earlier by the program's own run time, and finds
// the state object. There is always one; the verifier wants to know what else.
func begin(m *sharedMaps, missing string) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(regSkb, asm.R1),
		asm.Mov.Imm(regReason, int32(Closed)),
		asm.FnKtimeGetBootNs.Call(),
		asm.Mov.Reg(regNow, asm.R0),
		asm.StoreImm(asm.RFP, keyAt, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, m.live.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, keyAt),
		asm.FnMapLookupElem.Call(), // the slot → the object
		asm.JEq.Imm(asm.R0, 0, missing),
		asm.Mov.Reg(asm.R1, asm.R0),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, keyAt),
		asm.FnMapLookupElem.Call(), // the object → its one value
		asm.JEq.Imm(asm.R0, 0, missing),
		asm.Mov.Reg(regState, asm.R0),
	}
}

// judgeDeadline drops at and after the deadline, which it reads in one load.
func judgeDeadline() asm.Instructions {
	return asm.Instructions{
		asm.Mov.Imm(regReason, int32(Closed)),
		asm.LoadMem(asm.R1, regState, int16(unsafe.Offsetof(state{}.Deadline)), asm.DWord),
		asm.JGE.Reg(regNow, asm.R1, "drop"),
	}
}

// judgeFrame wants an Ethernet header whose type is the kernel's own idea of
// the frame, and no VLAN tag beside it: a tag may travel in the skb's metadata
// while the bytes look like plain IP.
func judgeFrame() asm.Instructions {
	return join(asm.Instructions{
		asm.Mov.Imm(regReason, int32(Protocol)),
		asm.LoadMem(asm.R1, regSkb, skbVlanPresent, asm.Word),
		asm.JNE.Imm(asm.R1, 0, "drop"),
	}, loadBytes(0, frameAt, ethLen, "drop"), asm.Instructions{
		asm.LoadMem(asm.R1, asm.RFP, frameAt+ethType, asm.Half),
		asm.LoadMem(asm.R2, regSkb, skbProtocol, asm.Word),
		asm.JNE.Reg(asm.R1, asm.R2, "drop"),
	})
}

// judgeToken wants the sender's MAC among the tokens.
func judgeToken(m *sharedMaps) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Imm(regReason, int32(Token)),
		asm.LoadMapPtr(asm.R1, m.tokens.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, frameAt+ethSource),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "drop"),
	}
}

// chooseFamily goes to the branch of the frame's type.
func chooseFamily(other string) asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R1, asm.RFP, frameAt+ethType, asm.Half),
		asm.HostTo(asm.BE, asm.R1, asm.Half),
		asm.JEq.Imm(asm.R1, etherTypeIPv4, "ipv4"),
		asm.JEq.Imm(asm.R1, etherTypeIPv6, "ipv6"),
		asm.Ja.Label(other),
	}
}

// version is one IP version: where its header has what, and where the state
// has the blocks its addresses are judged by.
type version struct {
	label               string
	number, header      int32
	source, destination int16
	size                int16 // of an address
	network, subnet     int16
}

func versions() []version {
	var s state
	v4, v6 := int16(unsafe.Offsetof(s.V4)), int16(unsafe.Offsetof(s.V6))
	return []version{{
		label: "ipv4", number: 4, header: ipv4Len,
		source: ipv4Source, destination: ipv4Destination, size: 4,
		network: v4 + int16(unsafe.Offsetof(s.V4.Network)), subnet: v4 + int16(unsafe.Offsetof(s.V4.Subnet)),
	}, {
		label: "ipv6", number: 6, header: ipv6Len,
		source: ipv6Source, destination: ipv6Destination, size: 16,
		network: v6 + int16(unsafe.Offsetof(s.V6.Network)), subnet: v6 + int16(unsafe.Offsetof(s.V6.Subnet)),
	}}
}

// load begins the version's branch: the whole fixed header, of the version
// that the frame's type promises.
func (v version) load(otherwise string) asm.Instructions {
	p := loadBytes(ethLen, ipAt, v.header, otherwise)
	p[0] = p[0].WithSymbol(v.label)
	return append(p,
		asm.LoadMem(asm.R1, asm.RFP, ipAt, asm.Byte),
		asm.RSh.Imm(asm.R1, 4),
		asm.JNE.Imm(asm.R1, v.number, otherwise),
	)
}

// judgeHome ends the version's branch: what this node sends must come from,
// and what it receives must go to, the live subnet or the outside of Network.
func (v version) judgeHome(d direction) asm.Instructions {
	at, why := v.source, Source
	if d == inward {
		at, why = v.destination, Destination
	}
	return join(
		asm.Instructions{asm.Mov.Imm(regReason, int32(why))},
		v.inside(at, v.network, "pass"),
		v.inside(at, v.subnet, "drop"),
		asm.Instructions{asm.Ja.Label("pass")},
	)
}

// inside goes on if the address at the header's offset at lies in the block,
// which is a base and then a mask, and leaves for outside if not. Both are
// compared as they lie in memory, in network order, 32 bits at a time.
func (v version) inside(at, block int16, outside string) asm.Instructions {
	var p asm.Instructions
	for word := int16(0); word < v.size; word += 4 {
		p = append(p,
			asm.LoadMem(asm.R1, asm.RFP, ipAt+at+word, asm.Word),
			asm.LoadMem(asm.R2, regState, block+v.size+word, asm.Word),
			asm.And.Reg(asm.R1, asm.R2),
			asm.LoadMem(asm.R2, regState, block+word, asm.Word),
			asm.JNE.Reg(asm.R1, asm.R2, outside),
		)
	}
	return p
}

// verdicts ends the program. Passing is "no verdict" and not TC_ACT_OK: OK
// ends the walk, and filters that someone else has put behind this one would
// silently stop working.
func verdicts(m *sharedMaps) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Imm(asm.R0, actUnspec).WithSymbol("pass"),
		asm.Return(),
		asm.StoreMem(asm.RFP, keyAt, regReason, asm.Word).WithSymbol("drop"),
		asm.LoadMapPtr(asm.R1, m.drops.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, keyAt),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "shot"),
		asm.Mov.Imm(asm.R1, 1),
		asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0),
		asm.Mov.Imm(asm.R0, actShot).WithSymbol("shot"),
		asm.Return(),
	}
}

// loadBytes copies length bytes of the frame from offset to the stack, and
// leaves for short if the frame has fewer.
func loadBytes(offset, stack, length int32, short string) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(asm.R1, regSkb),
		asm.Mov.Imm(asm.R2, offset),
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, stack),
		asm.Mov.Imm(asm.R4, length),
		asm.FnSkbLoadBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, short),
	}
}

// loaded is a program in the kernel and what it is recognised by: the tag is
// the kernel's hash of the instructions without the maps, so tag and maps
// together say "this build's program over these maps".
type loaded struct {
	prog *ebpf.Program
	tag  string
	maps []ebpf.MapID // in the order in which the instructions name them
}

func load(k form, d direction, m *sharedMaps) (loaded, error) {
	name := programName(k, d)
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: name, Type: ebpf.SchedCLS, License: "Apache-2.0",
		Instructions: program(k, d, m),
	})
	if err != nil {
		return loaded{}, fmt.Errorf("load program %s: %w", name, err)
	}
	l, err := inspect(prog)
	if err != nil {
		return loaded{}, errors.Join(fmt.Errorf("inspect program %s: %w", name, err), prog.Close())
	}
	return l, nil
}

func inspect(prog *ebpf.Program) (loaded, error) {
	info, err := prog.Info()
	if err != nil {
		return loaded{}, err
	}
	ids, _ := info.MapIDs()
	return loaded{prog: prog, tag: info.Tag, maps: ids}, nil
}
