package conf

// Unsupported names what n asks for and this version cannot do. To go on as if
// it could would be worse than to refuse. It is empty if there is nothing.
func Unsupported(n Network) Faults {
	var faults Faults
	if n.EnableIPv6 {
		faults.add("EnableIPv6", "IPv6 pods are not supported by this version")
	}
	return faults
}
