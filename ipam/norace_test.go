//go:build !race

package ipam

// slowdown is one where nothing watches the program.
const slowdown = 1
