// Package model is the lease protocol and the kernel's fence as a model in
// Promela, and the tests that have spin look at every state of it: in each
// configuration nothing that is promised may fail, and with any guard taken away
// something must.
//
// tenure.pml is the model, README.md says which of its lines is which code. The
// package has no code of the product and must not import any.
package model
