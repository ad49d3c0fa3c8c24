package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
)

// clients gives the etcd client once there is one.
type clients interface{ Client() *clientv3.Client }

// endpoints asks each endpoint now and then how it is, for status only.
type endpoints struct {
	urls []string
	mu   sync.Mutex
	last map[string]api.Endpoint
}

func newEndpoints(e conf.Etcd) *endpoints {
	return &endpoints{urls: e.Endpoints, last: map[string]api.Endpoint{}}
}

// How often an endpoint is asked: rarely while all is well, since every node
// of the cluster does it.
const (
	probeWell = 5 * time.Minute
	probeIll  = 10 * time.Second
	probeCall = 3 * time.Second
)

// Endpoints is what is known of each, in the order of the flag.
func (e *endpoints) Endpoints() []api.Endpoint {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := make([]api.Endpoint, 0, len(e.urls))
	for _, u := range e.urls {
		one := e.last[u]
		one.URL = u
		all = append(all, one)
	}
	return all
}

// Run asks until ctx ends.
func (e *endpoints) Run(ctx context.Context, c clients) error {
	for pause := time.Duration(0); ; {
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-t.C:
		}
		pause = e.probe(ctx, c.Client())
	}
}

// probe asks every endpoint once and returns the time until the next round.
func (e *endpoints) probe(ctx context.Context, c *clientv3.Client) time.Duration {
	if c == nil {
		return time.Second
	}
	next := probeWell
	for _, u := range e.urls {
		call, cancel := context.WithTimeout(ctx, probeCall)
		resp, err := c.Status(call, u)
		cancel()
		one := api.Endpoint{Healthy: err == nil}
		if err == nil {
			one.Version = resp.Version
		} else {
			next = probeIll
		}
		e.note(u, one)
	}
	return next
}

func (e *endpoints) note(u string, one api.Endpoint) {
	e.mu.Lock()
	defer e.mu.Unlock()
	before, known := e.last[u]
	one.Since = before.Since
	if !known || before.Healthy != one.Healthy {
		one.Since = time.Now().UTC().Format(time.RFC3339)
	}
	if one.Version == "" {
		one.Version = before.Version
	}
	e.last[u] = one
}

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

// endpointHosts are the hosts of the etcd URLs.
func endpointHosts(e conf.Etcd) []string {
	var hosts []string
	for _, raw := range e.Endpoints {
		if u, err := url.Parse(raw); err == nil && !slices.Contains(hosts, u.Hostname()) {
			hosts = append(hosts, u.Hostname())
		}
	}
	return hosts
}
