package conf

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
)

// ErrDecode says that a plugin's configuration is not JSON of the expected
// types (CNI code 6). What is well-formed but wrong is Faults (CNI code 7).
var ErrDecode = errors.New("cannot decode the plugin's configuration")

// NetConf is one plugin's configuration as the runtime hands it to the plugin
// and the plugin to tenured.
type NetConf struct {
	// PluginConf holds what every plugin has: name, cniVersion, type,
	// prevResult (undecoded; see version.ParsePrevResult).
	types.PluginConf
	// Tenure is the section of the plugin tenure, or of tenure-ipam if that
	// was called.
	Tenure Tenure
	// IPs are the addresses that the capability "ips" asks for.
	IPs []netip.Addr
	// MAC is what the capability "mac" asks for; all zero if it does not.
	MAC [6]byte
	// Attachments are those that a GC must keep: of cni.dev/valid-attachments
	// and the older cni.dev/attachments together. nil says that the runtime
	// gave no list, which is not an empty list.
	Attachments *[]types.GCAttachment
}

// Tenure is Tenure's own section of a plugin's configuration.
type Tenure struct {
	// Socket is where tenured listens; "" is the default.
	Socket string
}

// netConfForm is the part of the JSON that types.PluginConf does not cover.
type netConfForm struct {
	Tenure json.RawMessage `json:"tenure"`
	IPAM   struct {
		Tenure json.RawMessage `json:"tenure"`
	} `json:"ipam"`
	RuntimeConfig struct {
		IPs []string `json:"ips"`
		MAC string   `json:"mac"`
	} `json:"runtimeConfig"`
	Valid *[]types.GCAttachment `json:"cni.dev/valid-attachments"`
	Old   *[]types.GCAttachment `json:"cni.dev/attachments"`
}

// ParseNetConf reads a plugin's configuration, strictly inside the section
// "tenure", tolerantly outside. The error wraps ErrDecode or is of type
// Faults; with Faults all that is right is filled in, so that a DEL can go on.
func ParseNetConf(b []byte) (NetConf, error) {
	var n NetConf
	var form netConfForm
	if err := errors.Join(json.Unmarshal(b, &n.PluginConf), json.Unmarshal(b, &form)); err != nil {
		return NetConf{}, fmt.Errorf("%w: %w", ErrDecode, err)
	}
	var faults Faults
	if n.Name == "" {
		faults.add("name", "required")
	}
	for _, section := range []struct {
		prefix string
		raw    json.RawMessage
	}{{"tenure.", form.Tenure}, {"ipam.tenure.", form.IPAM.Tenure}} {
		if section.raw != nil && string(section.raw) != "null" {
			fill(section.raw, section.prefix, []slot{{"socket", &n.Tenure.Socket}}, &faults)
		}
	}
	n.IPs = parseIPs(form.RuntimeConfig.IPs, "runtimeConfig.ips", &faults)
	n.MAC = parseMAC(form.RuntimeConfig.MAC, &faults)
	n.Attachments = joinAttachments(form.Valid, form.Old)
	return n, faults.Err()
}

// parseIPs takes addresses with or without a prefix length, which the daemon
// knows better.
func parseIPs(texts []string, field string, faults *Faults) []netip.Addr {
	var ips []netip.Addr
	for _, text := range texts {
		a, err := netip.ParseAddr(text)
		if err != nil {
			var p netip.Prefix
			p, err = netip.ParsePrefix(text)
			a = p.Addr()
		}
		if err != nil || a.Zone() != "" {
			faults.add(field, "%q is not an IP address", text)
			continue
		}
		ips = append(ips, a.Unmap())
	}
	return ips
}

func parseMAC(text string, faults *Faults) [6]byte {
	var mac [6]byte
	if text == "" {
		return mac
	}
	hw, err := net.ParseMAC(text)
	switch {
	case err != nil || len(hw) != len(mac):
		faults.add("runtimeConfig.mac", "%q is not an Ethernet address", text)
	case hw[0]&1 != 0:
		faults.add("runtimeConfig.mac", "%s is a group address", text)
	default:
		mac = [6]byte(hw)
		if mac == [6]byte{} {
			faults.add("runtimeConfig.mac", "%s is no interface's address", text)
		}
	}
	return mac
}

// joinAttachments takes what either list names: when in doubt, keep.
func joinAttachments(valid, old *[]types.GCAttachment) *[]types.GCAttachment {
	if valid == nil {
		return old
	}
	all := slices.Clone(*valid)
	if all == nil {
		all = []types.GCAttachment{}
	}
	if old != nil {
		for _, a := range *old {
			if !slices.Contains(all, a) {
				all = append(all, a)
			}
		}
	}
	return &all
}
