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
	)
	cmd := &cobra.Command{
		Use:   "init --network CIDR | --network-config JSON|@FILE",
		Short: "birth the cluster: write its network config and the store's identity to etcd",
		Long: `init writes the network config and the identity of the store in one
transaction. On a prefix that has a config only, flannel's for example, it adds
the store and leaves the config; on a born cluster it changes nothing.

It is the operator's word that no node of an earlier life of this cluster runs.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b, warnings, err := networkConfig(network, config)
			if err != nil {
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
			return birth(ctx, etcd, b, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&network, "network", "", "pod network of the cluster as `CIDR`, everything else by default")
	cmd.Flags().StringVar(&config, "network-config", "", "whole network config, as `JSON` or @FILE")
	etcd.AddFlags(cmd.Flags())
	return cmd
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

func birth(ctx context.Context, etcd conf.Etcd, config []byte, out io.Writer) error {
	client, err := lease.Dial(etcd)
	if err != nil {
		return &exitError{exitNotReached, err}
	}
	defer func() { _ = client.Close() }()
	born, err := lease.Init(ctx, client, etcd.Prefix, config)
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
	if !born.Created && !born.Reconfigured && !sameConfig(config, born.Config) {
		what += "; the config asked for was NOT applied, to change it put the key " + etcd.Prefix + "/config"
	}
	_, err = fmt.Fprintf(out, "%s: prefix %s, store %s\nconfig: %s\n", what, etcd.Prefix, born.Store, born.Config)
	return err
}

// sameConfig says whether two configs mean the same.
func sameConfig(a, b []byte) bool {
	n, _, err := conf.ParseNetwork(a)
	m, _, err2 := conf.ParseNetwork(b)
	return err == nil && err2 == nil && n == m
}
