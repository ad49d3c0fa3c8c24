package lease

import (
	"fmt"
	"strings"

	"github.com/tenure-cni/tenure/conf"
)

// fewMost is how many of many things a text names, and oneMost how much of each,
// in bytes.
const (
	fewMost = 5
	oneMost = 320
)

// few names the first of many in a text of bounded length.
func few(all []string, between string) string {
	var named []string
	for _, one := range all[:min(len(all), fewMost)] {
		named = append(named, conf.Short(one, oneMost))
	}
	if more := len(all) - len(named); more > 0 {
		named = append(named, fmt.Sprintf("%d more", more))
	}
	return strings.Join(named, between)
}
