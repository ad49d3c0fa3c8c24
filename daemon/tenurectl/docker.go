package main

import (
	"fmt"
	"io"
	"net/netip"

	"github.com/spf13/cobra"

	"github.com/tenure-cni/tenure/daemon/api"
)

// dockerOptions has the names that docker's daemon.json has.
type dockerOptions struct {
	Bridge    string `json:"bridge"`
	FixedCIDR string `json:"fixed-cidr"`
	MTU       int    `json:"mtu"`
	IPMasq    bool   `json:"ip-masq"`
}

// String is how they stand on dockerd's command line.
func (o dockerOptions) String() string {
	return fmt.Sprintf("--bridge=%s --fixed-cidr=%s --mtu=%d --ip-masq=%t", o.Bridge, o.FixedCIDR, o.MTU, o.IPMasq)
}

func newDockerOpts(socket *string) *cobra.Command {
	var name, config, part string
	cmd := &cobra.Command{
		Use: "docker-opts", Short: "the options with which docker uses this node's subnet and bridge", Args: cobra.NoArgs,
		Long: `docker-opts prints what dockerd is to be started with so that its containers are
on this node's bridge, with addresses of its subnet: as a variable for an
EnvironmentFile, or as daemon.json. The subnet may be another one after a loss;
docker has to be started anew then.

docker and tenured do not know of each other's addresses. Where CNI pods have some,
docker takes a part: --fixed-cidr, with tenured started with --exclude of the same.
It exits 1 where no subnet is held, and where both would give out the same addresses.`,
	}
	f := newForms(cmd, "env", "json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := f.check(); err != nil {
			return err
		}
		if err := whose(cmd, config, &name, socket); err != nil {
			return err
		}
		s, err := askStatus(cmd.Context(), *socket)
		if err != nil {
			return err
		}
		options, err := forDocker(s, name, part)
		if err != nil {
			return err
		}
		return f.show(cmd.OutOrStdout(), options, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "DOCKER_OPTS=%q\n", options)
			return err
		})
	}
	cmd.Flags().StringVar(&name, "name", "tenure", "the daemon's --name")
	cmd.Flags().StringVar(&config, "config", "/etc/tenure/tenured.yaml", "tenured's configuration `file`")
	cmd.Flags().StringVar(&part, "fixed-cidr", "", "`CIDR` of the subnet that is docker's alone (default all of it)")
	return cmd
}

// forDocker are the options for a node of that status; part is "" for the whole
// subnet. Its errors carry the exit code.
func forDocker(s *api.Status, instance, part string) (dockerOptions, error) {
	o := dockerOptions{Bridge: instance + "0", FixedCIDR: s.Subnet, MTU: s.MTU}
	subnet, err := netip.ParsePrefix(s.Subnet)
	switch {
	case s.Subnet == "" && s.Subnet6 != "":
		return o, failed(exitStands, "this node's subnet %s is of IPv6 alone, and docker wants one of IPv4\nGive the cluster a network of both families", s.Subnet6)
	case s.Subnet == "":
		return o, failed(exitStands, "this node holds no subnet that docker could use: it is %s: %s\nLook at: tenurectl status", s.State, s.Reason)
	case err != nil:
		return o, failed(exitStands, "the daemon's subnet: %w", err)
	case part == "" && s.Addresses.Used > 0:
		return o, failed(exitStands, "%d addresses of %s are CNI pods': docker and tenured would give out the same ones\nGive docker a part of it by --fixed-cidr CIDR, and start tenured with --exclude CIDR for that part", s.Addresses.Used, subnet)
	case part == "":
		return o, nil
	}
	p, err := netip.ParsePrefix(part)
	if err != nil || p != p.Masked() || p.Bits() < subnet.Bits() || !subnet.Contains(p.Addr()) {
		return o, failed(exitUsage, "--fixed-cidr %q is no CIDR without host bits inside %s, this node's subnet", part, subnet)
	}
	o.FixedCIDR = p.String()
	return o, nil
}
