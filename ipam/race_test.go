//go:build race

package ipam

// slowdown allows for the race detector.
const slowdown = 8
