package ownership

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// probePort is where the pods of a Probes listen.
const probePort = 7017

// Place is where sockets can be made: a namespace of the lab, a pod.
type Place interface {
	Name() string
	// Do runs f on a thread inside.
	Do(f func() error) error
}

// Probes are pods that send datagrams to each other and note which arrive.
type Probes struct {
	every time.Duration

	mu      sync.Mutex
	pods    []*prober
	packets []Packet
}

// prober is one pod's socket.
type prober struct {
	end   End
	conn  *net.UDPConn
	holds func() (netip.Prefix, int64)
}

// here is the pod's end as it is now.
func (p *prober) here() End {
	e := p.end
	if p.holds != nil {
		e.Subnet, e.Epoch = p.holds()
	}
	return e
}

// probe is what a datagram carries.
type probe struct {
	From End
	Sent time.Duration
}

// NewProbes makes an empty set whose pods send every so often to each other one.
func NewProbes(every time.Duration) *Probes { return &Probes{every: every} }

// Join lets a pod take part until leave is called, which waits for what was
// started. holds says which subnet has the pod's address and under which epoch
// its node holds it, as far as that is certain without asking anybody; nil is
// "not known".
func (p *Probes) Join(at Place, node string, addr netip.Addr, holds func() (netip.Prefix, int64)) (leave func(), err error) {
	pod := &prober{end: End{Node: node, Addr: addr}, holds: holds}
	err = at.Do(func() (err error) {
		pod.conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, probePort)))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen for probes in %s: %w", at.Name(), err)
	}
	p.mu.Lock()
	p.pods = append(p.pods, pod)
	p.mu.Unlock()
	stop := make(chan struct{})
	var g sync.WaitGroup
	g.Go(func() { p.receive(pod) })
	g.Go(func() { p.send(pod, stop) })
	return func() {
		p.mu.Lock()
		p.pods = slices.DeleteFunc(p.pods, func(o *prober) bool { return o == pod })
		p.mu.Unlock()
		close(stop)
		_ = pod.conn.Close()
		g.Wait()
	}, nil
}

// receive notes each probe that comes in from another node, until the socket is
// closed.
func (p *Probes) receive(pod *prober) {
	buf := make([]byte, 1024)
	for {
		n, from, err := pod.conn.ReadFromUDPAddrPort(buf)
		received := now()
		if err != nil {
			return
		}
		var got probe
		if json.Unmarshal(buf[:n], &got) != nil || got.From.Node == pod.end.Node {
			continue
		}
		packet := Packet{From: got.From, To: pod.here(), Source: from.Addr().Unmap(), Sent: got.Sent, Received: received}
		p.mu.Lock()
		p.packets = append(p.packets, packet)
		p.mu.Unlock()
	}
}

func (p *Probes) send(pod *prober, stop <-chan struct{}) {
	tick := time.NewTicker(p.every)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		for _, to := range p.others(pod) {
			b, err := json.Marshal(probe{From: pod.here(), Sent: now()})
			if err != nil {
				continue
			}
			// What cannot be sent does not arrive, which is what is looked at.
			_, _ = pod.conn.WriteToUDPAddrPort(b, netip.AddrPortFrom(to, probePort))
		}
	}
}

// others are the addresses of pods on other nodes.
func (p *Probes) others(pod *prober) (all []netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range p.pods {
		if o.end.Node != pod.end.Node {
			all = append(all, o.end.Addr)
		}
	}
	return all
}

// Packets are those that have arrived so far between pods of different nodes.
func (p *Probes) Packets() []Packet { return p.After(0) }

// After are those that have arrived after the first so many: who looks again and
// again must not keep the pods from reading while all are copied.
func (p *Probes) After(first int) []Packet {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.packets[min(first, len(p.packets)):])
}

// Sampler looks at fences every so often.
type Sampler struct {
	every time.Duration

	mu      sync.Mutex
	samples []Sample
}

// NewSampler makes one that looks at nothing yet.
func NewSampler(every time.Duration) *Sampler { return &Sampler{every: every} }

// Watch looks at a node's fence until stop is called. read gives the subnet that
// is let through and the deadline; where it fails nothing is noted.
func (s *Sampler) Watch(node string, read func() (netip.Prefix, time.Duration, error)) (stop func()) {
	end := make(chan struct{})
	var g sync.WaitGroup
	g.Go(func() {
		tick := time.NewTicker(s.every)
		defer tick.Stop()
		for {
			began := now()
			subnet, deadline, err := read()
			ended := now()
			if err == nil {
				s.mu.Lock()
				s.samples = append(s.samples, Sample{node, began, ended, subnet, deadline})
				s.mu.Unlock()
			}
			select {
			case <-end:
				return
			case <-tick.C:
			}
		}
	})
	return func() { close(end); g.Wait() }
}

// Samples are those taken so far.
func (s *Sampler) Samples() []Sample {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.samples)
}
