package main

import (
	"context"
	"log/slog"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"

	"github.com/tenure-cni/tenure/daemon/api"
)

// watchdog tells systemd that the daemon lives, as often as the unit asks for,
// while it answers its own status over the socket: the way every verb comes in,
// and past the locks of engine, ledger and data plane. What is wrong outside,
// with etcd or the kernel, is no reason to be started anew and no part of it.
func watchdog(ctx context.Context, socket string, log *slog.Logger) error {
	within, err := sd.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("the watchdog of systemd cannot be served", "error", err)
	}
	if within <= 0 {
		return nil
	}
	// Three tries within the time: one slow answer is no hang.
	every := within / 3
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if err := alive(ctx, socket, every); err == nil {
			_, err = sd.SdNotify(false, sd.SdNotifyWatchdog)
			if err != nil {
				log.Warn("systemd was not told that the daemon lives", "error", err)
			}
		} else if ctx.Err() == nil {
			log.Error("the daemon does not answer itself; systemd will start it anew", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func alive(ctx context.Context, socket string, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	_, err := api.NewClient(socket).Status(ctx)
	return err
}
