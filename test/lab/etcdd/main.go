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

func main() {
	dir := flag.String("data-dir", "", "directory of the data")
	listen := flag.String("listen", "http://127.0.0.1:2379", "client URL")
	token := flag.String("token", "0", "initial cluster token; another one makes another cluster ID")
	flag.Parse()
	if err := serve(*dir, *listen, *token); err != nil {
		fmt.Fprintln(os.Stderr, "etcdd:", err)
		os.Exit(1)
	}
}

func serve(dir, listen, token string) error {
	client, err := url.Parse(listen)
	if err != nil {
		return fmt.Errorf("parse -listen: %w", err)
	}
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:2380"}
	cfg := embed.NewConfig()
	cfg.Name = "lab"
	cfg.Dir = dir
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.InitialClusterToken = token
	cfg.UnsafeNoFsync = true
	cfg.LogLevel = "warn"
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
