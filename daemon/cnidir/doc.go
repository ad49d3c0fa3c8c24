// Package cnidir reads a runtime's directory of CNI configurations as a runtime
// does, and says which of them lead pods to Tenure and which one is in use. It
// changes nothing and knows no daemon.
package cnidir
