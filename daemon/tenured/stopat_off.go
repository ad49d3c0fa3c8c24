//go:build !stopat

package main

// stopAt is nothing in what is shipped: no daemon can be made to stop or kill itself.
func stopAt() func(where string) { return nil }
