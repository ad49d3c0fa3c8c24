package ownership

import (
	"context"
	"net/netip"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Collect reads the history of a prefix in one go, from the first revision that
// is not compacted to the present one, as one life. It knows no times: use a
// Recorder where packets or fences are to be judged with it.
func Collect(ctx context.Context, c *clientv3.Client, prefix string) (History, error) {
	return History{}, nil
}

// Recorder follows a store through its lives.
type Recorder struct{}

// Record begins with the first revision of the store and records until Stop.
// The client stays the caller's; it should be one for the recorder alone, and
// reach etcd whatever the run does to the nodes.
func Record(ctx context.Context, c *clientv3.Client, prefix string) (*Recorder, error) {
	return nil, nil
}

// End ends the present life: it reads what is still to be read, for as long as
// ctx allows. To be called before the store is wiped or replaced; Begin must
// follow. An error says that the life's end may be missing.
func (r *Recorder) End(ctx context.Context) error { return nil }

// Begin begins another life, with the client to go on with. revision is that of
// the backup if the store was Restored: what comes after it is news.
func (r *Recorder) Begin(ctx context.Context, c *clientv3.Client, b Beginning, revision int64) error {
	return nil
}

// Foreign notes a write that the run has made past the protocol, by the revision
// in its answer.
func (r *Recorder) Foreign(revision int64, why string) {}

// Stop ends the recording and returns what is known.
func (r *Recorder) Stop(ctx context.Context) (History, []Foreign, error) {
	return History{}, nil, nil
}

// Place is where sockets can be made: a namespace of the lab, a pod.
type Place interface {
	Name() string
	// Do runs f on a thread inside.
	Do(f func() error) error
}

// Probes are pods that send datagrams to each other and note which arrive.
type Probes struct{}

// NewProbes makes an empty set whose pods send every so often to each other one.
func NewProbes(every time.Duration) *Probes { return nil }

// Join lets a pod take part until leave is called, which waits for what was
// started. holds says which subnet and epoch the pod's node holds, as far as it
// is known without asking anybody; nil is "not known".
func (p *Probes) Join(at Place, node string, addr netip.Addr, holds func() (netip.Prefix, int64)) (leave func(), err error) {
	return nil, nil
}

// Packets are those that have arrived so far between pods of different nodes.
func (p *Probes) Packets() []Packet { return nil }

// Sampler looks at fences every so often.
type Sampler struct{}

// NewSampler makes one that looks at nothing yet.
func NewSampler(every time.Duration) *Sampler { return nil }

// Watch looks at a node's fence until stop is called. read gives the subnet that
// is let through and the deadline; where it fails nothing is noted.
func (s *Sampler) Watch(node string, read func() (netip.Prefix, time.Duration, error)) (stop func()) {
	return nil
}

// Samples are those taken so far.
func (s *Sampler) Samples() []Sample { return nil }
