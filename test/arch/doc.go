// Package arch holds the rules that keep the house in order: who may import
// whom, where writes to etcd are built, which habits hold everywhere. Each
// failure says why its rule exists.
//
// It owns no behaviour. It reads the sources, the build's own dependency lists
// and the built programs, and changes nothing. It promises that every check can
// fail: each one is run on a snippet that breaks its rule. It must not import
// any package of the product, which would make it part of what it judges.
package arch
