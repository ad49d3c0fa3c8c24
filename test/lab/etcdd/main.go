// Command etcdd is one etcd member in one process, for a lab's own use.
package main

import (
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/signal"

	"go.etcd.io/etcd/server/v3/embed"
	"golang.org/x/sys/unix"
)

// member is what tells one member of a cluster from another.
type member struct {
	name, dir, client, peer string
	// cluster lists all members as name=peer URL; token makes its ID.
	cluster, token string
	// joins: the others run already, and have added it.
	joins bool
	// tokenTTL, in seconds, is the life of a user's token; hashCost is that of
	// comparing a password.
	tokenTTL, hashCost uint
}

func main() {
	var m member
	flag.StringVar(&m.name, "name", "lab", "name of the member")
	flag.StringVar(&m.dir, "data-dir", "", "directory of the data")
	flag.StringVar(&m.client, "listen", "http://127.0.0.1:2379", "client URL")
	flag.StringVar(&m.peer, "listen-peer", "http://127.0.0.1:2380", "peer URL")
	flag.StringVar(&m.cluster, "initial-cluster", "", "all members, as name=peerURL,...; empty is this one alone")
	flag.StringVar(&m.token, "token", "0", "initial cluster token; another one makes another cluster ID")
	flag.BoolVar(&m.joins, "join", false, "join members that run")
	flag.UintVar(&m.tokenTTL, "auth-token-ttl", 300, "seconds that a user's token lives after its last use")
	flag.UintVar(&m.hashCost, "bcrypt-cost", 10, "cost of a password's hash, from 4")
	flag.Parse()
	if err := m.serve(); err != nil {
		fmt.Fprintln(os.Stderr, "etcdd:", err)
		os.Exit(1)
	}
}

func (m member) serve() error {
	client, err := url.Parse(m.client)
	if err != nil {
		return fmt.Errorf("parse -listen: %w", err)
	}
	peer, err := url.Parse(m.peer)
	if err != nil {
		return fmt.Errorf("parse -listen-peer: %w", err)
	}
	cfg := embed.NewConfig()
	cfg.Name = m.name
	cfg.Dir = m.dir
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
	if cfg.InitialCluster = m.cluster; m.cluster == "" {
		cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	}
	cfg.InitialClusterToken = m.token
	if m.joins {
		cfg.ClusterState = embed.ClusterStateFlagExisting
	}
	cfg.UnsafeNoFsync = true
	cfg.LogLevel = "warn"
	cfg.AuthTokenTTL, cfg.BcryptCost = m.tokenTTL, m.hashCost
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return fmt.Errorf("start etcd: %w", err)
	}
	defer e.Close()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, unix.SIGTERM, unix.SIGINT)
	select {
	case <-stop:
		return nil
	case err := <-e.Err():
		return fmt.Errorf("etcd ended: %w", err)
	}
}
