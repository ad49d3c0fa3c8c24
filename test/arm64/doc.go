// Package arm64 has no code, only a test: what depends on byte order, alignment
// and the layout of structures is compiled for arm64 and run under qemu-user.
// "make test-arm64" compiles and runs much more.
package arm64
