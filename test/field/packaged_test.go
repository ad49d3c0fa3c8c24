package field

import (
	"testing"

	"github.com/tenure-cni/tenure/test/packaged"
)

// TestPackagedEtcd is the reports about etcd once more, on the one that the
// distribution packages: 3.4 in Debian 12, with the faults that its later
// releases have lost. Right is the same.
func TestPackagedEtcd(t *testing.T) {
	t.Parallel()
	packaged.Again(t, "TestA1", "TestA2", "TestB6", "TestB6Taken", "TestB7Member", "TestO1", "TestO9")
}
