package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/lease"
)

// initTimeout bounds the whole command.
const initTimeout = 15 * time.Second

func newInit() *cobra.Command {
	var (
		etcd    conf.Etcd
		network string
		config  string
		loss    bool
		settle  time.Duration
	)
	cmd := &cobra.Command{
		Use:   "init --network CIDR | --network-config JSON|@FILE",
		Short: "birth the cluster: write its network config and the store's identity to etcd",
		Long: `init writes the network config and the identity of the store in one
transaction. On a prefix that has a config only, flannel's for example, it adds
the store and leaves the config; on a born cluster it changes nothing.

It is the operator's word that no node of an earlier life of this cluster runs.
Where one may run, after the store was wiped or restored, give --after-loss: for
the time of --settle nobody acquires a subnet but the nodes that still hold one
by an open overlay, so that none is given out twice.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b, warnings, err := networkConfig(network, config)
			if err != nil {
				return &exitError{exitUsage, err}
			}
			if settle, err = settleFor(b, loss, settle); err != nil {
				return &exitError{exitUsage, err}
			}
			for _, w := range warnings {
				cmd.PrintErrln("tenurectl: warning:", w)
			}
			if err := etcd.Check().Err(); err != nil {
				return &exitError{exitUsage, err}
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), initTimeout)
			defer cancel()
			return birth(ctx, etcd, b, settle, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&network, "network", "", "pod network of the cluster as `CIDR`, everything else by default")
	cmd.Flags().StringVar(&config, "network-config", "", "whole network config, as `JSON` or @FILE")
	cmd.Flags().BoolVar(&loss, "after-loss", false, "nodes of an earlier life may run still: make newcomers wait for --settle")
	cmd.Flags().DurationVar(&settle, "settle", 0, "how long, with --after-loss; at least the longest LeaseTTL that those nodes had (default: the config's)")
	etcd.AddFlags(cmd.Flags())
	return cmd
}

// settleFor is how long newcomers wait; 0 is not at all.
func settleFor(config []byte, loss bool, asked time.Duration) (time.Duration, error) {
	n, _, err := conf.ParseNetwork(config)
	switch {
	case err != nil:
		return 0, err
	case !loss && asked != 0:
		return 0, fmt.Errorf("--settle is only for --after-loss")
	case !loss:
		return 0, nil
	case asked == 0:
		return n.LeaseTTL, nil
	case asked < conf.MinLeaseTTL:
		return 0, fmt.Errorf("--settle %s is shorter than the shortest lease (%s)", asked, conf.MinLeaseTTL)
	}
	return asked, nil
}

// networkConfig validates what was given before anything is touched.
func networkConfig(network, config string) ([]byte, []string, error) {
	switch {
	case (network == "") == (config == ""):
		return nil, nil, fmt.Errorf("give either --network or --network-config")
	case network != "":
		if _, err := netip.ParsePrefix(network); err != nil {
			return nil, nil, fmt.Errorf("--network: %w", err)
		}
		whole := map[string]any{"Backend": map[string]string{"Type": conf.BackendVXLAN}}
		if strings.Contains(network, ":") {
			whole["IPv6Network"], whole["EnableIPv6"], whole["EnableIPv4"] = network, true, false
		} else {
			whole["Network"] = network
		}
		b, err := json.Marshal(whole)
		if err != nil {
			return nil, nil, err
		}
		config = string(b)
	}
	b, err := conf.ReadNetworkConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("--network-config: %w", err)
	}
	n, warnings, err := conf.ParseNetwork(b)
	if err == nil {
		err = conf.Unsupported(n).Err()
	}
	if err != nil {
		return nil, nil, fmt.Errorf("network config: %w", err)
	}
	return b, warnings, nil
}

func birth(ctx context.Context, etcd conf.Etcd, config []byte, settle time.Duration, out io.Writer) error {
	client, err := lease.Dial(etcd)
	if err != nil {
		return &exitError{exitNotReached, err}
	}
	defer func() { _ = client.Close() }()
	born, err := initialise(ctx, client, etcd.Prefix, config, settle)
	if err != nil {
		return failed(exitNotReached, "etcd at %s: %w", strings.Join(etcd.Endpoints, ", "), err)
	}
	what := "the cluster was born before, nothing is changed"
	switch {
	case born.Created:
		what = "the cluster is born"
	case born.Adopted:
		what = "there was a network config, the store's identity is added"
	case born.Reconfigured:
		what = "the cluster's network config was missing, it is written again"
	}
	if born.Settling {
		what += fmt.Sprintf("; newcomers wait until settle ends, in %s at most", born.Settle)
	}
	if !born.Created && !born.Reconfigured && !sameConfig(config, born.Config) {
		what += "; the config asked for was NOT applied, to change it put the key " + etcd.Prefix + "/config"
	}
	_, err = fmt.Fprintf(out, "%s: prefix %s, store %s\nconfig: %s\n", what, etcd.Prefix, born.Store, born.Config)
	return err
}

func initialise(ctx context.Context, c *clientv3.Client, prefix string, config []byte, settle time.Duration) (lease.Born, error) {
	if settle > 0 {
		return lease.InitAfterLoss(ctx, c, prefix, config, settle)
	}
	return lease.Init(ctx, c, prefix, config)
}

// sameConfig says whether two configs mean the same.
func sameConfig(a, b []byte) bool {
	n, _, err := conf.ParseNetwork(a)
	m, _, err2 := conf.ParseNetwork(b)
	return err == nil && err2 == nil && n == m
}
