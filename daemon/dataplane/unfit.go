package dataplane

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// Unfit says why nobody else shall be told an address with that scope and those
// flags (IFA_F_*): it does not reach beyond the link, it is on its way out, or it
// is not this machine's for certain yet. "" if nothing speaks against it.
func Unfit(ip netip.Addr, scope, flags int) string {
	flag := func(f int) bool { return flags&f != 0 }
	switch {
	case scope != unix.RT_SCOPE_UNIVERSE || ip.IsLinkLocalUnicast() && ip.Is6():
		return "not of global scope"
	case flag(unix.IFA_F_DADFAILED):
		return "another machine's too (duplicate address detection failed)"
	case flag(unix.IFA_F_TENTATIVE):
		return "tentative: the kernel has yet to see that no other machine has it"
	case ip.Is6() && flag(unix.IFA_F_TEMPORARY): // of IPv4 the same bit says secondary
		return "temporary"
	case flag(unix.IFA_F_DEPRECATED):
		return "deprecated"
	}
	return ""
}
