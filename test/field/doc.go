// Package field replays faults that users of other pod networks have reported,
// against Tenure's real daemons in namespaces. Each test bears the name of its
// row in the list of such reports that the project keeps, and says in a
// paragraph who reported what, what was seen, and what is right.
//
// Each row has a file of its own; rows whose experiment lies in one package are
// tests of that name there: D11, D12, D16 and D20 in ipam; I5, I7, I9, J1, J2,
// L2, L3, P1, P2 and P3 in daemon/dataplane; N2 in daemon/tenured. E7 is with the other crashes in
// test/e2e. It must not import a package of the product but daemon/api.
package field
