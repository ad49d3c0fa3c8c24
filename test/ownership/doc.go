// Package ownership is the one checker of the promise: at no instant can two
// nodes exchange un-NATed overlay packets whose pod addresses lie in overlapping
// leased subnets (P1), and every write to a subnet's key is fenced (P2).
//
// It owns the verdict. [Judge] is a pure function of [Evidence]: what etcd's
// prefix went through, revision by revision ([History]); packets that arrived
// ([Packet]); what the nodes' fences allowed ([Sample]); and, where a client was
// listened to, what it asked of etcd ([Op]). Each piece may be missing: what is
// there is judged. All times are of CLOCK_BOOTTIME of one kernel, which every
// namespace of a lab shares.
//
// It promises to name only what is certain. An event of etcd has no time of its
// own; it was committed between two instants that a [Recorder] knows, and what
// is judged by it holds for every instant between. So a slow observer can hide a
// violation, and never make one up.
//
// [Recorder], [Probes] and [Sampler] collect evidence and judge nothing.
//
// It must not import the product: a checker that decodes with the code that it
// judges believes what that code believes. The form of keys and records is
// written down once more, in record.go. Nor must it import the lab, so that the
// tests of package lease can use it; a namespace of the lab is a [Place].
package ownership
