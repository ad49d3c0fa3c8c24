// Command delegating is a CNI plugin for the bench: it stands for the plugin
// that flannel's users have in front. Like that one it reads the node's subnet
// from a file that a daemon wrote, makes of it a configuration of the reference
// plugin bridge with host-local, keeps that until the DEL and hands the call
// on, so that an ADD is three programs. It is no plugin to use.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
)

func main() {
	skel.PluginMainFuncs(skel.CNIFuncs{Add: add, Del: del}, version.PluginSupports("0.3.1", "0.4.0", "1.0.0"), "")
}

// config is standard input.
type config struct {
	CNIVersion string         `json:"cniVersion"`
	Name       string         `json:"name"`
	SubnetFile string         `json:"subnetFile"`
	DataDir    string         `json:"dataDir"`
	Delegate   map[string]any `json:"delegate"`
}

func add(args *skel.CmdArgs) error {
	var c config
	if err := json.Unmarshal(args.StdinData, &c); err != nil {
		return fmt.Errorf("decode configuration: %w", err)
	}
	text, err := os.ReadFile(c.SubnetFile)
	if err != nil {
		return fmt.Errorf("read subnet: %w", err)
	}
	conf, err := c.bridge(variables(string(text)))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.DataDir, 0o700); err != nil {
		return fmt.Errorf("keep configuration: %w", err)
	}
	if err := os.WriteFile(c.kept(args.ContainerID), conf, 0o600); err != nil {
		return fmt.Errorf("keep configuration: %w", err)
	}
	result, err := invoke.DelegateAdd(context.Background(), "bridge", conf, nil)
	if err != nil {
		return err
	}
	return types.PrintResult(result, c.CNIVersion)
}

func del(args *skel.CmdArgs) error {
	var c config
	if err := json.Unmarshal(args.StdinData, &c); err != nil {
		return fmt.Errorf("decode configuration: %w", err)
	}
	conf, err := os.ReadFile(c.kept(args.ContainerID))
	if os.IsNotExist(err) {
		return nil // nothing was added
	}
	if err != nil {
		return fmt.Errorf("read kept configuration: %w", err)
	}
	if err := invoke.DelegateDel(context.Background(), "bridge", conf, nil); err != nil {
		return err
	}
	return os.Remove(c.kept(args.ContainerID))
}

// kept is the file of the configuration that a container was added with.
func (c config) kept(container string) string { return filepath.Join(c.DataDir, container) }

// bridge is the configuration to hand on.
func (c config) bridge(subnet map[string]string) ([]byte, error) {
	for _, name := range []string{"NETWORK", "SUBNET", "MTU"} {
		if subnet[name] == "" {
			return nil, fmt.Errorf("%s lacks %s", c.SubnetFile, name)
		}
	}
	own, err := netip.ParsePrefix(subnet["SUBNET"]) // with the gateway's address
	if err != nil {
		return nil, fmt.Errorf("subnet in %s: %w", c.SubnetFile, err)
	}
	conf := map[string]any{
		"cniVersion": c.CNIVersion, "name": c.Name, "type": "bridge",
		"mtu": json.Number(subnet["MTU"]),
		"ipam": map[string]any{
			"type": "host-local", "dataDir": filepath.Join(c.DataDir, "host-local"),
			"ranges": [][]map[string]string{{{"subnet": own.Masked().String()}}},
			"routes": []map[string]string{{"dst": subnet["NETWORK"]}},
		},
	}
	for k, v := range c.Delegate {
		conf[k] = v
	}
	return json.Marshal(conf)
}

// variables reads lines of FLANNEL_NAME=value; the names come without FLANNEL_.
func variables(text string) map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			all[strings.TrimPrefix(name, "FLANNEL_")] = value
		}
	}
	return all
}
