// Package pki makes certificate authorities, and certificates that they sign,
// as PEM files for tests. They are good for a day, unless a test wants one that
// has ended.
package pki
