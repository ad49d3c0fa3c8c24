package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/tenure-cni/tenure/conf"
)

// runEtcd runs the embedded server until ctx ends. It is tried again while it
// cannot start, for example because the port is taken.
func runEtcd(ctx context.Context, cfg conf.Daemon, log *slog.Logger) error {
	return forever(ctx, log, "embedded etcd", func(ctx context.Context) error {
		e, err := startEtcd(cfg)
		if err != nil {
			return err
		}
		defer e.Close()
		log.Info("embedded etcd runs", "listen", cfg.EtcdEmbeddedListen)
		select {
		case <-ctx.Done():
			return nil
		case err := <-e.Err():
			return fmt.Errorf("embedded etcd ended: %w", err)
		}
	})
}

// startEtcd starts one member that peers with nobody.
func startEtcd(cfg conf.Daemon) (*embed.Etcd, error) {
	client, err := url.Parse(cfg.EtcdEmbeddedListen)
	if err != nil {
		return nil, fmt.Errorf("embedded etcd: %w", err)
	}
	c := embed.NewConfig()
	c.Name = "tenure"
	c.Dir = filepath.Join(cfg.StateDir, "etcd")
	// A single member has no peers, but the server wants a listener for them.
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	c.AutoCompactionMode, c.AutoCompactionRetention = embed.CompactorModePeriodic, "1h"
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	e, err := embed.StartEtcd(c)
	if err != nil {
		return nil, fmt.Errorf("start embedded etcd on %s: %w", cfg.EtcdEmbeddedListen, err)
	}
	return e, nil
}
