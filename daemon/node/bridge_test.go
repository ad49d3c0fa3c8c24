package node

import (
	"fmt"
	"testing"

	"github.com/tenure-cni/tenure/daemon/attach"
)

// TestAddWaitsForADeletedBridge: the data plane makes it again.
func TestAddWaitsForADeletedBridge(t *testing.T) {
	r := newRig(t, held(t, "10.5.34.0/24", 7))
	mustAdd(t, r, "c1")
	tries := 0
	r.interfaces.added = func() error {
		if tries++; tries < 3 {
			return fmt.Errorf("add: %w: tenure0", attach.ErrNoBridge)
		}
		return nil
	}
	mustAdd(t, r, "c2")
	if tries != 3 || len(containers(r)) != 2 {
		t.Errorf("after %d tries %v are on record", tries, containers(r))
	}
}
