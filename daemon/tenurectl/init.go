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
	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/lease"
)

func newInit(socket *string) *cobra.Command {
	var (
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
	}
	r, f := newReach(cmd, socket), newForms(cmd, "table", "json", "yaml")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := f.check(); err != nil {
			return err
		}
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
		return r.within(func(ctx context.Context, c *clientv3.Client) error {
			if err := clashes(b, r.etcd); err != nil {
				return &exitError{exitUsage, err}
			}
			born, err := initialise(ctx, c, r.etcd.Prefix, b, settle)
			if err != nil {
				return err
			}
			applied := born.Created || born.Reconfigured || sameConfig(b, born.Config)
			object := api.Born{Created: born.Created, Adopted: born.Adopted, Reconfigured: born.Reconfigured, Prefix: r.etcd.Prefix,
				Store: born.Store, Config: string(born.Config), ConfigApplied: applied, SettleSeconds: born.Settle.Seconds()}
			return f.show(cmd.OutOrStdout(), object, func(w io.Writer) error { return bornText(w, object, born) })
		})
	}
	cmd.Flags().StringVar(&network, "network", "", "pod network of the cluster as `CIDR`, everything else by default")
	cmd.Flags().StringVar(&config, "network-config", "", "whole network config, as `JSON` or @FILE")
	cmd.Flags().BoolVar(&loss, "after-loss", false, "nodes of an earlier life may run still: make newcomers wait for --settle")
	cmd.Flags().DurationVar(&settle, "settle", 0, "how long, with --after-loss; at least the longest LeaseTTL that those nodes had (default: the config's)")
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
	_, warnings, err := conf.ParseNetwork(b)
	if err != nil {
		return nil, nil, fmt.Errorf("network config: %w", err)
	}
	return b, warnings, nil
}

// clashes refuses a network that covers etcd's address: no node would take it.
func clashes(config []byte, etcd conf.Etcd) error {
	n, _, err := conf.ParseNetwork(config)
	if err == nil {
		err = conf.Overlaps(n, endpointsOf(etcd)).Err()
	}
	if err != nil {
		return fmt.Errorf("network config: %w", err)
	}
	return nil
}

func bornText(w io.Writer, b api.Born, born lease.Born) error {
	what := "the cluster was born before, nothing is changed"
	switch {
	case b.Created:
		what = "the cluster is born"
	case b.Adopted:
		what = "there was a network config, the store's identity is added"
	case b.Reconfigured:
		what = "the cluster's network config was missing, it is written again"
	}
	if born.Settling {
		what += fmt.Sprintf("; newcomers wait until settle ends, in %s at most", born.Settle)
	}
	if !b.ConfigApplied {
		what += "; the config asked for was NOT applied, to change it: tenurectl config set"
	}
	_, err := fmt.Fprintf(w, "%s: prefix %s, store %s\nconfig: %s\n", what, b.Prefix, b.Store, b.Config)
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
