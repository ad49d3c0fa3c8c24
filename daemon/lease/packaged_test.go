package lease

import (
	"testing"

	"go.etcd.io/etcd/api/v3/version"

	"github.com/tenure-cni/tenure/test/packaged"
)

// TestPackagedEtcd runs the engine against the etcd that the distribution
// packages too: what an answer means must not depend on whose it is.
func TestPackagedEtcd(t *testing.T) {
	t.Parallel()
	packaged.Again(t,
		"TestEtcdOfTheTests",
		// Acquire, and races for it.
		"TestAcquirePublishesAndArms", "TestPoolOfExactlyAsManySubnetsAsNodes", "TestOneLeaseForEveryTry",
		// Guards: what a transaction compares, and how its refusal is read.
		"TestAcquireComparesEverythingItReliesOn", "TestProofTellsOneLifeOfAKeyFromTheNext", "TestUpdateYieldsToAnyoneElsesWrite",
		"TestEveryWriteYieldsToWhatItHasNotRead", "TestReassertComparesEverythingItReliesOn", "TestReserveAndConfigureCompare",
		// Answers that do not come.
		"TestUnknownAcquireIsUndone", "TestUnknownAcquire", "TestUnknownRebind", "TestUnknownLeave",
		"TestSwallowedEvents", "TestSilenceLeavesTheDeadline",
		// Restart, another lease, the end of a tenancy.
		"TestRestartResumesWithoutAWrite", "TestRestartWithEtcdAwayServesUntilTheDeadline", "TestTTLChange",
		"TestLosingClosesTheFenceAndTakesTheSameSubnetAgain", "TestRecordOverwrittenUnderOurLease", "TestA1", "TestLeave", "TestRelease",
		// What etcd refuses, forgets, or brings back.
		"TestStoreThatRefusesWrites", "TestRefusedKeepAlivesAreNotAHotLoop", "TestO1", "TestRestartIntoARestoredStore", "TestRestoredStoreWithUsers",
		// Users and TLS.
		"TestSecureStore", "TestO7", "TestKeepAliveProvesNothing",
	)
}

// TestEtcdOfTheTests makes sure that the server is the one that was asked for.
func TestEtcdOfTheTests(t *testing.T) {
	t.Parallel()
	want := version.Version
	if program := packaged.Program(); program != "" {
		var err error
		if want, err = packaged.Version(program); err != nil {
			t.Fatal(err)
		}
	}
	s, c := cluster(t, fourSubnets)
	resp, err := c.Status(t.Context(), s.Endpoint)
	if err != nil || resp.Version != want {
		t.Errorf("etcd says that it is %v (%v), want %s", resp, err, want)
	}
}
