package main

import (
	"context"
	"time"

	"github.com/tenure-cni/tenure/daemon/attach"
	"github.com/tenure-cni/tenure/daemon/node"
	"github.com/tenure-cni/tenure/daemon/server"
	"github.com/tenure-cni/tenure/ipam"
)

// timedInterfaces notes how long the work on pod interfaces takes.
type timedInterfaces struct {
	node.Interfaces
	times *server.Times
}

// Add implements node.Interfaces.
func (t timedInterfaces) Add(ctx context.Context, netns string, w attach.Want) (attach.Endpoint, error) {
	defer t.times.Took("ADD", server.PartAttach, time.Now())
	return t.Interfaces.Add(ctx, netns, w)
}

// Check implements node.Interfaces.
func (t timedInterfaces) Check(ctx context.Context, netns string, w attach.Want) ([]attach.Op, error) {
	defer t.times.Took("CHECK", server.PartAttach, time.Now())
	return t.Interfaces.Check(ctx, netns, w)
}

// Del implements node.Interfaces.
func (t timedInterfaces) Del(ctx context.Context, hostName string) error {
	defer t.times.Took("DEL", server.PartAttach, time.Now())
	return t.Interfaces.Del(ctx, hostName)
}

// ledgerTook notes how long a change of the ledger took.
func (d *daemon) ledgerTook(c ipam.Change, began time.Time) {
	verb := "ADD"
	if c == ipam.Released {
		verb = "DEL"
	}
	d.times.Took(verb, server.PartLedger, began)
}
