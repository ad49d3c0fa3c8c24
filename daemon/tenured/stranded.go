package main

import (
	"context"
	"os"
	"path/filepath"

	"github.com/tenure-cni/tenure/daemon/hook"
	"github.com/tenure-cni/tenure/daemon/node"
)

// stranding is what acts on stranded pods.
type stranding interface {
	node.Hook
	Run(ctx context.Context) error
}

// onStranded makes what --on-stranded asks for. It is run when the node is
// there to be asked.
func (d *daemon) onStranded(boot string) stranding {
	if d.cfg.OnStranded == "" {
		return noHook{}
	}
	return hook.New(hook.Config{
		Command: d.cfg.OnStranded, File: filepath.Join(d.cfg.RunDir, "on-stranded.json"), Boot: boot,
		Node: d.cfg.NodeName, Environ: os.Environ(),
		Strandings: func() []hook.Stranding { return d.node.Strandings() }, Log: d.log,
	})
}

// noHook leaves stranded pods to the operator.
type noHook struct{}

// Changed implements node.Hook.
func (noHook) Changed() {}

// GivenUp implements node.Hook.
func (noHook) GivenUp() []hook.Pod { return nil }

// Run has nothing to run.
func (noHook) Run(context.Context) error { return nil }
