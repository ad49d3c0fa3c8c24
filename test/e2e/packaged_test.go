package e2e

import (
	"testing"

	"github.com/tenure-cni/tenure/test/packaged"
)

// TestPackagedEtcd is what the cluster's store takes part in once more, on the
// etcd that the distribution packages.
func TestPackagedEtcd(t *testing.T) {
	t.Parallel()
	packaged.Again(t, "TestEtcdVersion", "TestRestoredBackup", "TestClusterVerbs", "TestLeave", "TestRelease")
}
