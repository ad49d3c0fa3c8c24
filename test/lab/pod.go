package lab

import (
	"context"
	"crypto/sha512"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
)

// PortMapping asks portmap for a port of the node.
type PortMapping struct {
	HostPort      int    `json:"hostPort"`
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP,omitempty"`
}

// PodOptions are what a runtime would pass along with ADD; the zero value asks
// for nothing.
type PodOptions struct {
	// Network is the name of a conflist in the node's CNIDir; empty is tenure.
	Network string
	// IfName is the interface's name; empty is eth0.
	IfName string
	// PortMappings, IPs (with prefix length) and MAC are capability arguments.
	PortMappings []PortMapping
	IPs          []string
	MAC          string
	// Args is CNI_ARGS, as "IP=10.5.1.7;K=V".
	Args string
}

// Pod is a namespace that stands for a pod's sandbox on a node.
type Pod struct {
	*NS
	// Pod is the name as given to AddPod.
	Pod string
	// Node is the host it runs on.
	Node *Node
	// IP is the first address of Result, IP6 the first one of IPv6, invalid if
	// there is none.
	IP, IP6 netip.Addr
	// Result is what ADD answered.
	Result *types100.Result

	opts PodOptions
}

// AddPod makes a namespace and has cnitool ADD it to the network. When ADD
// fails, a DEL follows as with any runtime, and the namespace goes.
func (n *Node) AddPod(ctx context.Context, name string, opts PodOptions) (*Pod, error) {
	p, err := n.Sandbox(ctx, name, opts)
	if err != nil {
		return nil, err
	}
	if err := p.Add(ctx); err != nil {
		// The ADD's failure is what the caller asked about.
		_ = p.Del(ctx)
		return nil, err
	}
	n.lab.logf("node %s: pod %s has %s", n.Host, name, p.IP)
	return p, nil
}

// Sandbox makes the pod's namespace without any CNI call.
func (n *Node) Sandbox(ctx context.Context, name string, opts PodOptions) (*Pod, error) {
	ns, err := n.lab.addNS(ctx, strings.TrimPrefix(n.podPrefix(), nsPrefix(n.lab.id))+name)
	if err != nil {
		return nil, fmt.Errorf("add pod %s on %s: %w", name, n.Host, err)
	}
	return &Pod{NS: ns, Pod: name, Node: n, opts: opts}, nil
}

// podPrefix begins the name of every pod namespace of the node. The dot cannot
// be in a node's name, so no node's prefix begins another's.
func (n *Node) podPrefix() string { return nsPrefix(n.lab.id) + "p-" + n.Host + "." }

// ContainerID is the one that cnitool makes of the namespace's path.
func (p *Pod) ContainerID() string {
	sum := sha512.Sum512([]byte(p.Path()))
	return fmt.Sprintf("cnitool-%x", sum[:10])
}

// IfName is the pod's interface.
func (p *Pod) IfName() string {
	if p.opts.IfName == "" {
		return "eth0"
	}
	return p.opts.IfName
}

// Add has cnitool ADD the pod and keeps the result.
func (p *Pod) Add(ctx context.Context) error {
	out, err := p.cnitool(ctx, "add")
	if err != nil {
		return err
	}
	result, err := parseResult([]byte(out))
	if err != nil {
		return fmt.Errorf("ADD of pod %s on %s: %w", p.Pod, p.Node.Host, err)
	}
	addr, ok := netip.AddrFromSlice(result.IPs[0].Address.IP)
	if !ok {
		return fmt.Errorf("ADD of pod %s on %s: address %v", p.Pod, p.Node.Host, result.IPs[0].Address)
	}
	p.Result, p.IP = result, addr.Unmap()
	for _, ip := range result.IPs {
		if a, ok := netip.AddrFromSlice(ip.Address.IP); ok && a.Unmap().Is6() && !p.IP6.IsValid() {
			p.IP6 = a
		}
	}
	return nil
}

// Check has cnitool CHECK the pod.
func (p *Pod) Check(ctx context.Context) error {
	_, err := p.cnitool(ctx, "check")
	return err
}

// Del has cnitool DEL the pod, then takes the namespace away, whatever DEL
// said.
func (p *Pod) Del(ctx context.Context) error {
	_, err := p.cnitool(ctx, "del")
	return errors.Join(err, p.Vanish())
}

// Vanish takes the namespace away without a DEL, as a crash of the runtime
// does.
func (p *Pod) Vanish() error { return deleteNamespace(p.name) }

func (p *Pod) cnitool(ctx context.Context, verb string) (string, error) {
	network := p.opts.Network
	if network == "" {
		network = "tenure"
	}
	env := []string{"CNI_IFNAME=" + p.IfName()}
	if p.opts.Args != "" {
		env = append(env, "CNI_ARGS="+p.opts.Args)
	}
	caps, err := p.opts.capabilityArgs()
	if err != nil {
		return "", err
	}
	if caps != "" {
		env = append(env, "CAP_ARGS="+caps)
	}
	out, err := p.Node.CNITool(ctx, env, verb, network, p.Path())
	if err != nil {
		return out, fmt.Errorf("%s of pod %s on %s: %w", strings.ToUpper(verb), p.Pod, p.Node.Host, err)
	}
	return out, nil
}

func (o PodOptions) capabilityArgs() (string, error) {
	args := map[string]any{}
	if len(o.PortMappings) > 0 {
		args["portMappings"] = o.PortMappings
	}
	if len(o.IPs) > 0 {
		args["ips"] = o.IPs
	}
	if o.MAC != "" {
		args["mac"] = o.MAC
	}
	if len(args) == 0 {
		return "", nil
	}
	b, err := json.Marshal(args)
	if err != nil {
		return "", fmt.Errorf("encode capability arguments: %w", err)
	}
	return string(b), nil
}

func parseResult(b []byte) (*types100.Result, error) {
	parsed, err := create.CreateFromBytes(b)
	if err != nil {
		return nil, fmt.Errorf("decode result %q: %w", b, err)
	}
	result, err := types100.GetResult(parsed)
	if err != nil {
		return nil, fmt.Errorf("convert result %q: %w", b, err)
	}
	if len(result.IPs) == 0 {
		return nil, fmt.Errorf("result %q holds no address", b)
	}
	return result, nil
}
