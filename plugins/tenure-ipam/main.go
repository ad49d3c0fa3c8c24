// Command tenure-ipam is the CNI IPAM plugin, for use by plugins such as bridge
// and ptp: it hands each call to tenured.
package main

import (
	"os"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/plugins/shim"
)

// version is stamped by the linker.
var version = "dev"

func main() {
	os.Exit(shim.Main(api.PathIPAM, version))
}
