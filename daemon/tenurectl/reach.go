package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/lease"
)

// clusterTimeout bounds a cluster verb that does not wait for a person.
const clusterTimeout = 15 * time.Second

// reach is how a cluster verb comes to etcd: by its own flags, or else in the
// way of the tenured of this node, which its socket tells.
type reach struct {
	socket *string
	etcd   conf.Etcd
	cmd    *cobra.Command
	// uid is this node's own, where the daemon has told it.
	uid string
	// alone says why the daemon was not asked, where it might have been.
	alone error
}

// newReach gives the command its flags.
func newReach(cmd *cobra.Command, socket *string) *reach {
	r := &reach{socket: socket, cmd: cmd}
	r.etcd.AddFlags(cmd.Flags())
	return r
}

// given says that any flag about etcd is on the command line: then they all
// count, and the daemon is not asked.
func (r *reach) given() bool {
	given := false
	r.cmd.Flags().Visit(func(f *pflag.Flag) { given = given || strings.HasPrefix(f.Name, "etcd-") })
	return given
}

// resolve finds out how to reach etcd. The daemon is of no use where it does not
// run, unless a socket was named: then the flags' defaults are tried.
func (r *reach) resolve(ctx context.Context) error {
	if r.given() {
		return r.check()
	}
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	a, err := api.NewClient(*r.socket).EtcdAccess(ctx)
	named := r.cmd.Flag("socket") != nil && r.cmd.Flag("socket").Changed
	switch {
	case err == nil:
		r.uid = a.UID
		r.etcd = conf.Etcd{Endpoints: a.Endpoints, Prefix: a.Prefix, CAFile: a.CAFile, CertFile: a.CertFile, KeyFile: a.KeyFile,
			Username: a.Username, PasswordFile: a.PasswordFile}
		if err := r.check(); err != nil {
			return failed(exitNotReached, "tenured on %s reaches etcd in a way that is not open here: %w\nRun it where tenured runs, as root, or give --etcd-endpoints and what belongs to them", *r.socket, err)
		}
		return nil
	case !named && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)):
		r.alone = err
		return r.check()
	case errors.Is(err, fs.ErrPermission):
		return failed(exitNotReached, "%w\nOnly root may ask tenured how it reaches etcd: run it with sudo, or give --etcd-endpoints and what belongs to them", err)
	}
	return failed(exitNotReached, "%w\ntenured does not say how it reaches etcd (it does not run, or is older than this tenurectl): give --etcd-endpoints and what belongs to them", err)
}

func (r *reach) check() error {
	if err := r.etcd.Check().Err(); err != nil {
		return &exitError{exitUsage, err}
	}
	return nil
}

// errNoClient: there is no connection, for want of a certificate or an answer.
var errNoClient = errors.New("no connection")

// do calls f with a client, and explains what etcd says.
func (r *reach) do(ctx context.Context, f func(context.Context, *clientv3.Client) error) error {
	if err := r.resolve(ctx); err != nil {
		return err
	}
	client, err := lease.Dial(r.etcd)
	if err != nil {
		return r.explain(fmt.Errorf("%w: %w", errNoClient, err))
	}
	defer func() { _ = client.Close() }()
	return r.explain(f(ctx, client))
}

// within is do, bounded by clusterTimeout.
func (r *reach) within(f func(context.Context, *clientv3.Client) error) error {
	ctx, cancel := context.WithTimeout(r.cmd.Context(), clusterTimeout)
	defer cancel()
	return r.do(ctx, f)
}

// explain says what an error of etcd's means and what to do about it. An error
// that has its exit code already stays as it is.
func (r *reach) explain(err error) error {
	var exit *exitError
	if err == nil || errors.As(err, &exit) {
		return err
	}
	at := "etcd at " + strings.Join(r.etcd.Endpoints, ", ")
	switch {
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		return failed(exitStands, "%s: %w\nThe user %q lacks rights on the prefix: etcdctl role grant-permission ROLE readwrite %s/ --prefix", at, err, r.etcd.Username, r.etcd.Prefix)
	case errors.Is(err, rpctypes.ErrUserEmpty):
		return failed(exitStands, "%s: %w\nThis etcd wants a user: give --etcd-username and --etcd-password-file, or a client certificate whose common name is one", at, err)
	case errors.Is(err, rpctypes.ErrAuthFailed), errors.Is(err, rpctypes.ErrAuthNotEnabled):
		return failed(exitStands, "%s: %w\nLook at --etcd-username and --etcd-password-file", at, err)
	}
	switch {
	case misnamed(err):
		return &exitError{exitUsage, err}
	case !silent(err):
		return &exitError{exitStands, err}
	case r.alone != nil:
		return failed(exitNotReached, "%s: %w\nThat is the default, since no tenured runs here to be asked (%w): give --etcd-endpoints", at, err, r.alone)
	}
	return failed(exitNotReached, "%s: %w\nIs it up, and does this machine reach it? With https, are --etcd-cafile, --etcd-certfile and --etcd-keyfile the right ones?", at, err)
}

// misnamed: what the command was asked about does not exist.
func misnamed(err error) bool {
	for _, target := range []error{lease.ErrNoSuchHolder, lease.ErrAmbiguous, lease.ErrReleased, lease.ErrNoSuchSubnet} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

// silent tells that etcd did not answer from everything that somebody decided.
func silent(err error) bool {
	var refused rpctypes.EtcdError
	if errors.As(err, &refused) {
		return refused.Code() == codes.Unavailable || refused.Code() == codes.DeadlineExceeded
	}
	if errors.Is(err, errNoClient) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return true
	}
	var answer interface{ GRPCStatus() *status.Status }
	return errors.As(err, &answer)
}

// offer is what may stand in the place of an argument.
type offer int

const (
	offerSubnets offer = 1 << iota
	offerNodes
)

// complete offers names and subnets that the daemon of this node knows of, for
// each argument in turn: for a shell, so quickly or not at all.
func complete(socket *string, offers ...offer) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) >= len(offers) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), time.Second)
		defer cancel()
		s, err := api.NewClient(*socket).Status(ctx)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var all []cobra.Completion
		may := offers[len(args)]
		for _, p := range append(s.Peers, api.Peer{Node: s.Node, Subnet: s.Subnet}) {
			if may&offerNodes != 0 && p.Node != "" {
				all = append(all, cobra.CompletionWithDesc(p.Node, p.Subnet))
			}
			if may&offerSubnets != 0 && p.Subnet != "" {
				all = append(all, cobra.CompletionWithDesc(p.Subnet, fmt.Sprintf("node %s", p.Node)))
			}
		}
		return all, cobra.ShellCompDirectiveNoFileComp
	}
}
