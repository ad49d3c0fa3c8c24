package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/tenure-cni/tenure/conf"
)

// version is stamped by the linker.
var version = "dev"

// Exit codes of DESIGN §6.
const (
	exitOK    = 0
	exitFatal = 1 // what no retry can cure
	exitUsage = 2 // a bad flag, environment, file or network config
)

// garbage is how much of it, in percent of what is in use, the daemon lets come
// together; Go's own measure is 100. Whole snapshots of the cluster come and go, and
// with 5,000 peers that was a third of all memory. GOGC overrules it.
const garbage = 50

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbage)
	}
	os.Exit(start(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}

// start is main as a function of its world.
func start(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	cfg, err := conf.Load(args, environ, stdout)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return exitOK
	case err != nil:
		_, _ = fmt.Fprintf(stderr, "tenured: %v\n", err)
		return exitUsage
	case cfg.ShowVersion:
		_, _ = fmt.Fprintln(stdout, "tenured", version)
		return exitOK
	}
	log := newLogger(cfg, stderr)
	for _, w := range cfg.Warnings {
		log.Warn(w)
	}
	if err := run(ctx, cfg, log); err != nil {
		log.Error("tenured ends", "error", err)
		return exitFatal
	}
	log.Info("tenured stopped; lease, kernel and files stay as they are")
	return exitOK
}

func newLogger(cfg conf.Daemon, w io.Writer) *slog.Logger {
	opts := &slog.HandlerOptions{Level: cfg.LogLevel}
	if cfg.LogFormat == "json" {
		return slog.New(newQuiet(slog.NewJSONHandler(w, opts)))
	}
	return slog.New(newQuiet(slog.NewTextHandler(w, opts)))
}
