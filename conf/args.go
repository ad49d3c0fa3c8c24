package conf

import (
	"net/netip"
	"strings"
)

// Args is what Tenure reads of CNI_ARGS.
type Args struct {
	// IPs are the addresses of IP=, one or several with commas between.
	IPs []netip.Addr
	// PodNamespace and PodName are K8S_POD_NAMESPACE and K8S_POD_NAME, for
	// display only.
	PodNamespace string
	PodName      string
}

// ParseArgs reads CNI_ARGS, "key=value;key=value". Keys it does not know are
// passed over, whether IgnoreUnknown is set or not: runtimes put their own in.
// The error is of type Faults.
func ParseArgs(text string) (Args, error) {
	var args Args
	var faults Faults
	for pair := range strings.SplitSeq(text, ";") {
		key, value, _ := strings.Cut(pair, "=")
		switch key {
		case "IP":
			if value != "" {
				args.IPs = append(args.IPs, parseIPs(strings.Split(value, ","), "CNI_ARGS IP", &faults)...)
			}
		case "K8S_POD_NAMESPACE":
			args.PodNamespace = value
		case "K8S_POD_NAME":
			args.PodName = value
		}
	}
	return args, faults.Err()
}
