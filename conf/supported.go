package conf

// Unsupported names what n asks for and this version cannot do. To go on as if
// it could would be worse than to refuse. It is empty if there is nothing.
func Unsupported(n Network) Faults {
	var faults Faults
	if n.Backend.Type != BackendVXLAN {
		faults.add("Backend.Type", "%s is not supported by this version, vxlan is", n.Backend.Type)
	}
	if n.Backend.DirectRouting {
		faults.add("Backend.DirectRouting", "is not supported by this version")
	}
	return faults
}
