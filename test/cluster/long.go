package cluster

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// Long tells whether a test shall take its long form, which "make test-long"
// asks for: with TENURE_LONG=1. The short form is never skipped.
func Long(t testing.TB) bool {
	t.Helper()
	long := os.Getenv("TENURE_LONG") == "1"
	if long {
		t.Log("the long form (TENURE_LONG=1)")
	}
	return long
}

// Seed is where a test's chance begins, another one each time; it is in the
// test's log, and TENURE_SEED sets it, so that the same is tried again.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv("TENURE_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("TENURE_SEED: %v", err)
		}
	}
	t.Logf("TENURE_SEED=%d", seed)
	return seed
}
