package attach

import (
	"crypto/sha256"
	"encoding/base32"
	"net/netip"
	"strings"
)

// Owner says whose a pod interface is. Its fields hold no white space.
type Owner struct {
	// Instance tells two Tenures on one host apart.
	Instance string
	// Network, ContainerID and IfName are those of the CNI call.
	Network, ContainerID, IfName string
}

// String is for logs and errors.
func (o Owner) String() string { return o.Network + "/" + o.ContainerID + "/" + o.IfName }

const (
	hostPrefix  = "ten"
	aliasMark   = "tenure"
	maxLinkName = 15  // IFNAMSIZ without its terminating zero
	maxAlias    = 255 // IFALIASZ without its terminating zero
)

// HostName is the name of the veth's host end: 15 bytes, a hash of the whole
// owner, for container IDs may share any prefix and one container may have
// several interfaces.
func HostName(o Owner) string {
	// No field holds a zero byte, so no two owners are joined to one string.
	sum := sha256.Sum256([]byte(strings.Join([]string{o.Instance, o.Network, o.ContainerID, o.IfName}, "\x00")))
	return hostPrefix + strings.ToLower(base32.HexEncoding.EncodeToString(sum[:]))[:maxLinkName-len(hostPrefix)]
}

// MACFor is the pod interface's MAC: a function of the address, so that a
// neighbour entry for an address is right for whoever has it next. It is
// explicit and locally administered: udev leaves such a one alone.
func MACFor(addr netip.Addr) [6]byte {
	mac := [6]byte{0x0a, 0x58}
	if addr = addr.Unmap(); addr.Is4() {
		b := addr.As4()
		copy(mac[2:], b[:])
		return mac
	}
	b := addr.As16()
	sum := sha256.Sum256(b[:])
	copy(mac[2:], sum[len(sum)-4:])
	return mac
}

// hostMAC is the host end's MAC. It is set in the request that makes the veth
// and so marks it as this instance's before it has its alias. Its first byte
// keeps it apart from every pod's.
func hostMAC(instance, hostName string) [6]byte {
	sum := sha256.Sum256([]byte(instance + "\x00" + hostName))
	mac := [6]byte{0x0e}
	copy(mac[1:], sum[:])
	return mac
}

// Alias is the text on the host end (ifalias) that says whose it is and which
// addresses were given to it: enough to rebuild a lost record from the kernel.
func Alias(o Owner, addrs []netip.Prefix) string {
	words := []string{aliasMark, o.Instance, o.Network, o.ContainerID, o.IfName}
	for _, a := range addrs {
		words = append(words, a.String())
	}
	return strings.Join(words, " ")
}

// ParseAlias undoes Alias; ok is false for any other text.
func ParseAlias(alias string) (o Owner, addrs []netip.Prefix, ok bool) {
	words := strings.Fields(alias)
	if len(words) < 5 || words[0] != aliasMark {
		return Owner{}, nil, false
	}
	for _, w := range words[5:] {
		p, err := netip.ParsePrefix(w)
		if err != nil {
			return Owner{}, nil, false
		}
		addrs = append(addrs, p)
	}
	return Owner{words[1], words[2], words[3], words[4]}, addrs, true
}
