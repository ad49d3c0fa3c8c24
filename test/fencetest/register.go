package fencetest

import (
	"errors"
	"sync"
	"time"
)

// ErrStale says that the register was closed since its generation was read.
var ErrStale = errors.New("closed since")

// State is what a kernel would have, and what a test wants of it.
type State[S comparable] struct {
	// Generation changes whenever what was proven before must not count.
	Generation uint64
	// Live is the subnet that is let through, until Deadline by CLOCK_BOOTTIME.
	Live     S
	Deadline time.Duration
	// Closed is how often it was closed by Close, and not by another subnet.
	Closed int
	// Stuck is what Close is refused with, nil for not.
	Stuck error
}

// Register is a lease.Fence for subnets of type S. The zero Register is closed.
type Register[S comparable] struct {
	mu    sync.Mutex
	state State[S]
}

// Do gives the state to f, which must not keep it; nobody else has it meanwhile.
func (r *Register[S]) Do(f func(*State[S])) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(&r.state)
}

// Get is the state at this instant.
func (r *Register[S]) Get() (now State[S]) {
	r.Do(func(s *State[S]) { now = *s })
	return now
}

// Close implements lease.Fence.
func (r *Register[S]) Close() (err error) {
	r.Do(func(s *State[S]) {
		if err = s.Stuck; err == nil {
			s.Generation++
			s.Closed++
			s.Deadline = 0
		}
	})
	return err
}

// Generation implements lease.Fence.
func (r *Register[S]) Generation() uint64 { return r.Get().Generation }

// Set implements lease.Fence.
func (r *Register[S]) Set(live, _ S) error {
	r.Do(func(s *State[S]) {
		if live != s.Live {
			s.Generation++
			s.Deadline, s.Live = 0, live
		}
	})
	return nil
}

// CutTo implements lease.Fence.
func (r *Register[S]) CutTo(deadline time.Duration) error {
	r.Do(func(s *State[S]) { s.Generation++; s.Deadline = min(s.Deadline, deadline) })
	return nil
}

// Arm implements lease.Fence.
func (r *Register[S]) Arm(generation uint64, deadline time.Duration) (err error) {
	r.Do(func(s *State[S]) {
		if err = ErrStale; generation == s.Generation {
			s.Deadline, err = deadline, nil
		}
	})
	return err
}

// Deadline implements lease.Fence.
func (r *Register[S]) Deadline() (time.Duration, error) { return r.Get().Deadline, nil }

// Live implements lease.Fence.
func (r *Register[S]) Live() (S, error) { return r.Get().Live, nil }
