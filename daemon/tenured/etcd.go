package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
)

// embedded is the etcd server inside this process, if it shall have one.
type embedded struct {
	cfg conf.Daemon
	log *slog.Logger

	mu    sync.Mutex
	err   error // why it does not run
	since time.Time
}

// run serves until ctx ends. It is tried again while it cannot start, for
// example because its address is not there yet.
func (s *embedded) run(ctx context.Context) error {
	return forever(ctx, s.log, "embedded etcd", func(ctx context.Context) error {
		err := s.serve(ctx)
		s.note(err)
		return err
	})
}

func (s *embedded) serve(ctx context.Context) error {
	e, err := startEtcd(s.cfg, endStreams(ctx))
	if err != nil {
		return err
	}
	defer e.Close()
	s.note(nil)
	s.log.Info("embedded etcd runs", "listen", s.cfg.EtcdEmbeddedListen)
	select {
	case <-ctx.Done():
		return nil
	case err := <-e.Err():
		return fmt.Errorf("embedded etcd ended: %w", err)
	}
}

func (s *embedded) note(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.since = time.Now()
	}
	s.err = err
}

// Problems says why it does not run.
func (s *embedded) Problems() []api.Problem {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		return nil
	}
	return []api.Problem{{Code: "etcd-embedded", Severity: api.SeverityError, Text: s.err.Error(), Since: s.since.UTC().Format(time.RFC3339),
		Fix: "give --etcd-embedded-listen an address of this machine and a port that nobody has; it is tried again by itself"}}
}

// endStreams ends what is open when ctx ends, above all the watches of other
// nodes: a server that is closed waits seven seconds for them.
func endStreams(ctx context.Context) grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
		both, cancel := context.WithCancel(ss.Context())
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		err := handle(srv, within{ss, both})
		if ctx.Err() != nil {
			return status.Error(codes.Unavailable, "this etcd is stopping")
		}
		return err
	}
}

// within is a stream with another context.
type within struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (s within) Context() context.Context { return s.ctx }

// startEtcd starts one member that peers with nobody. With TLS it reads its
// certificate anew for each connection.
func startEtcd(cfg conf.Daemon, streams grpc.StreamServerInterceptor) (*embed.Etcd, error) {
	client, err := url.Parse(cfg.EtcdEmbeddedListen)
	if err != nil {
		return nil, fmt.Errorf("embedded etcd: %w", err)
	}
	c := embed.NewConfig()
	c.Name = "tenure"
	c.Dir = filepath.Join(cfg.StateDir, "etcd")
	if strings.HasPrefix(cfg.EtcdEmbeddedListen, "https:") {
		c.ClientTLSInfo.CertFile, c.ClientTLSInfo.KeyFile = cfg.Etcd.CertFile, cfg.Etcd.KeyFile
		c.ClientTLSInfo.TrustedCAFile, c.ClientTLSInfo.ClientCertAuth = cfg.Etcd.CAFile, cfg.Etcd.CAFile != ""
	}
	// A single member has no peers, but the server wants a listener for them.
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	c.AutoCompactionMode, c.AutoCompactionRetention = embed.CompactorModePeriodic, "1h"
	c.GRPCAdditionalServerOptions = []grpc.ServerOption{grpc.ChainStreamInterceptor(streams)}
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	e, err := embed.StartEtcd(c)
	if err != nil {
		return nil, fmt.Errorf("start embedded etcd on %s: %w", cfg.EtcdEmbeddedListen, err)
	}
	return e, nil
}
