package main

import (
	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/server"
)

// counts is what the parts have counted, for metrics. What cannot be read now
// is left out.
func (d *daemon) counts() server.Counts {
	l, r := d.engine.Counts(), d.plane.Report()
	c := server.Counts{
		Cycles: l.Cycles, Transactions: l.Transactions, Proofs: l.Proofs, Missed: l.Missed,
		Passes: r.Passes, Writes: r.Writes, Certificates: d.endpoints.certs.ends(),
	}
	if n, err := api.QueueLength(d.queue.dir); err == nil {
		c.Queued = n
	}
	if f := d.fence.Load(); f != nil {
		if drops, err := f.Drops(); err == nil {
			c.Drops = make(map[string]uint64, len(drops))
			for reason, n := range drops {
				c.Drops[reason.String()] = n
			}
		}
	}
	return c
}
