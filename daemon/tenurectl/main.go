package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/tenure-cni/tenure/daemon/api"
)

// version is stamped by the linker.
var version = "dev"

// Exit codes of DESIGN §6.
const (
	exitOK         = 0
	exitStands     = 1
	exitUsage      = 2
	exitNotReached = 3
)

// exitError carries the exit code that an error stands for.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

func failed(code int, format string, args ...any) error {
	return &exitError{code, fmt.Errorf(format, args...)}
}

// errQuiet ends with an exit code whose reason has been printed already.
var errQuiet = errors.New("")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is main as a function of its world.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	if msg := err.Error(); msg != "" {
		_, _ = fmt.Fprintf(stderr, "tenurectl: %s\n", msg)
	}
	var exit *exitError
	if errors.As(err, &exit) {
		return exit.code
	}
	return exitUsage // cobra's own: an unknown command or flag, a bad value
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "tenurectl",
		Short:         "look at and steer a Tenure network",
		Long:          "tenurectl talks to the tenured of this node through its socket, and to the cluster's etcd.",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var socket string
	root.PersistentFlags().StringVar(&socket, "socket", api.DefaultSocket, "unix socket `path` of this node's tenured")
	root.AddCommand(newDockerOpts(&socket), newDoctor(&socket), newInstall(), newLeave(&socket), newMan(), newStatus(&socket), newStranded(&socket), newSupportBundle(&socket), newUninstall(&socket), newVersion())
	root.AddCommand(newConfig(&socket), newHistory(&socket), newInit(&socket), newLeases(&socket), newMap(&socket),
		newRelease(&socket), newReserve(&socket), newUnreserve(&socket))
	return root
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "print the version", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "tenurectl", version)
			return err
		},
	}
}
