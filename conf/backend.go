package conf

import (
	"encoding/json"
	"strings"
)

// Backend types.
const (
	BackendVXLAN  = "vxlan"
	BackendHostGW = "host-gw"
)

// Backend says how packets reach the other nodes.
type Backend struct {
	// Type is BackendVXLAN or BackendHostGW.
	Type string
	// VNI is the vxlan network identifier, 1 to 16777215; 0 with host-gw.
	VNI int
	// Port is vxlan's UDP port; 0 with host-gw.
	Port int
	// DirectRouting routes without vxlan to nodes on the same link; false with
	// host-gw, which always does.
	DirectRouting bool
	// MTU is the underlay's MTU in bytes, from which the tunnel's overhead is
	// taken as flannel does; 0 takes that of the node's interface. More than that
	// interface has does not fit, and counts as its.
	MTU int
}

const (
	defaultVNI  = 1
	maxVNI      = 1<<24 - 1
	defaultPort = 8472
	maxPort     = 1<<16 - 1
	minMTU      = 576  // a pod's least: every host takes a packet of this size
	minMTU6     = 1280 // the same with IPv6, its least link MTU (RFC 8200, section 5)
	maxMTU      = 1<<16 - 1
)

// What vxlan adds to a packet, in bytes: the Ethernet header inside 14, vxlan
// 8, UDP 8, and the outer IP header, which is 20 of IPv4 and 40 of IPv6.
const (
	vxlanOverhead  = 50
	vxlanOverhead6 = 70
)

// Overhead is what a packet of a pod grows by on its way to another node, in
// bytes: nothing where it is routed, else what vxlan adds. Packets of IPv6 pods
// (six) travel over an IPv6 underlay.
func (b Backend) Overhead(six bool) int {
	switch {
	case b.Type == BackendHostGW:
		return 0
	case six:
		return vxlanOverhead6
	}
	return vxlanOverhead
}

// backendForm is the Backend object as written: nil is "not given".
type backendForm struct {
	kind, macPrefix *string
	vni, port       *int
	mtu             int
	direct          bool
	gbp, learning   bool
}

func (f *networkForm) readBackend(six bool) Backend {
	form := backendForm{}
	if f.backend != nil {
		fill(f.backend, "Backend.", []slot{
			{"Type", &form.kind},
			{"VNI", &form.vni},
			{"Port", &form.port},
			{"DirectRouting", &form.direct},
			{"MTU", &form.mtu},
			{"GBP", &form.gbp},
			{"Learning", &form.learning},
			{"MacPrefix", &form.macPrefix},
		}, &f.faults)
	}
	b := Backend{Type: BackendVXLAN, MTU: form.mtu}
	if form.kind != nil {
		b.Type = strings.ToLower(*form.kind)
	}
	switch b.Type {
	case BackendVXLAN:
		f.readVXLAN(form, &b)
	case BackendHostGW:
		if form.vni != nil || form.port != nil || form.direct {
			f.warn("Backend.VNI, Port and DirectRouting mean nothing to host-gw")
		}
	default:
		f.fault("Backend.Type", "%q is not supported; %s and %s are", *form.kind, BackendVXLAN, BackendHostGW)
	}
	least := minMTU + b.Overhead(false)
	if six {
		least = minMTU6 + b.Overhead(six)
	}
	if b.MTU != 0 && (b.MTU < least || b.MTU > maxMTU) {
		f.fault("Backend.MTU", "%d is neither 0 nor within %d to %d", b.MTU, least, maxMTU)
	}
	return b
}

func (f *networkForm) readVXLAN(form backendForm, b *Backend) {
	b.VNI, b.Port, b.DirectRouting = defaultVNI, defaultPort, form.direct
	if form.vni != nil {
		b.VNI = *form.vni
	}
	if form.port != nil {
		b.Port = *form.port
	}
	if b.VNI < 1 || b.VNI > maxVNI {
		f.fault("Backend.VNI", "%d is not within 1 to %d", b.VNI, maxVNI)
	}
	if b.Port < 1 || b.Port > maxPort {
		f.fault("Backend.Port", "%d is not within 1 to %d", b.Port, maxPort)
	}
	if form.gbp {
		f.warn("Backend.GBP is not supported: packets carry no group policy")
	}
	if form.learning {
		f.warn("Backend.Learning is not supported: peers are known from etcd only")
	}
	if form.macPrefix != nil {
		f.warn("Backend.MacPrefix is not supported: the tunnel's MAC follows from the subnet and its epoch")
	}
}

// MarshalJSON leaves out what the type does not have.
func (b Backend) MarshalJSON() ([]byte, error) {
	if b.Type == BackendHostGW {
		return json.Marshal(struct {
			Type string
			MTU  int `json:",omitempty"`
		}{b.Type, b.MTU})
	}
	type plain Backend
	return json.Marshal(plain(b))
}
