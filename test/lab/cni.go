package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"
)

// CNITool runs cnitool with the given arguments on the node, with the node's
// configuration directory and a cache of the node's own. env is added to its
// environment. Its standard output is returned.
func (n *Node) CNITool(ctx context.Context, env []string, args ...string) (string, error) {
	cnitool, err := n.lab.tool("tools", "cnitool")
	if err != nil {
		return "", err
	}
	// "ip netns exec" has made a mount namespace for this one process, so the
	// machine's own /var/lib/cni is neither seen nor written.
	argv := append([]string{"sh", "-c", `mount --bind "$0" /var/lib && exec "$@"`, n.varLib(), cnitool}, args...)
	var stdout, stderr bytes.Buffer
	cmd := n.lab.command(ctx, n.name, argv...)
	cmd.Env = append(cmd.Env, "CNI_PATH="+n.lab.cniPath(), "NETCONFPATH="+n.CNIDir)
	cmd.Env = append(cmd.Env, env...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	return n.lab.finish(ctx, cmd, &stdout, &stderr)
}

// cniPath is CNI_PATH: the product, then the reference plugins.
func (l *Lab) cniPath() string { return l.opts.Bin + ":" + l.opts.Bin + "/tools" }

// conflist is the network as a user would configure it.
func (n *Node) conflist() []byte {
	return fmt.Appendf(nil, `{
  "cniVersion": "0.4.0",
  "cniVersions": ["0.3.1", "0.4.0", "1.0.0", "1.1.0"],
  "name": "tenure",
  "plugins": [
    {"type": "tenure", "capabilities": {"ips": true, "mac": true}, "tenure": {"socket": %q}},
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
`, n.Socket)
}

// CNICall is one call of a plugin's binary, as a runtime makes it.
type CNICall struct {
	// Plugin is the binary's name; empty is tenure.
	Plugin string
	// Verb is CNI_COMMAND. The other fields are the CNI_* variables of the same
	// name; an empty one is left out.
	Verb, ContainerID, Netns, IfName, Args string
	// Config is standard input; nil is the tenure section of the node's
	// conflist in CNI 1.1.0.
	Config []byte
	// Env is added to the environment and wins over the fields.
	Env []string
}

// CNIAnswer is what the binary did.
type CNIAnswer struct {
	Stdout, Stderr []byte
	Exit           int
	// Err is the error object on standard output when Exit is not 0, else nil.
	Err *types.Error
}

// CNI calls a plugin's binary directly, in the node's network namespace, with
// an environment that holds no other CNI variable. The error says only that it
// could not be run or was cut off; what the plugin answered is the answer.
func (n *Node) CNI(ctx context.Context, call CNICall) (*CNIAnswer, error) {
	cmd, err := n.cniCommand(ctx, call)
	if err != nil {
		return nil, err
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	// The child is made by a thread inside the namespace, which waits for it.
	err = n.Do(cmd.Run)
	if cmd.ProcessState == nil || ctx.Err() != nil {
		return nil, fmt.Errorf("%s of %s on %s: %w", call.Verb, call.plugin(), n.Host, errors.Join(err, ctx.Err()))
	}
	answer := &CNIAnswer{Stdout: stdout.Bytes(), Stderr: stderr.Bytes(), Exit: cmd.ProcessState.ExitCode()}
	if answer.Exit != 0 {
		answer.Err = new(types.Error)
		if err := json.Unmarshal(answer.Stdout, answer.Err); err != nil {
			return answer, fmt.Errorf("%s of %s on %s: exit code %d without an error object: %w: %q %q",
				call.Verb, call.plugin(), n.Host, answer.Exit, err, answer.Stdout, answer.Stderr)
		}
	}
	return answer, nil
}

func (c CNICall) plugin() string {
	if c.Plugin == "" {
		return "tenure"
	}
	return c.Plugin
}

func (n *Node) cniCommand(ctx context.Context, call CNICall) (*exec.Cmd, error) {
	path, err := n.lab.tool(call.plugin())
	if err != nil {
		return nil, err
	}
	config := call.Config
	if config == nil {
		config = fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"tenure","type":"tenure","tenure":{"socket":%q}}`, n.Socket)
	}
	cmd := exec.CommandContext(ctx, path)
	cmd.Stdin = bytes.NewReader(config)
	cmd.Env = append(environment(), "CNI_PATH="+n.lab.cniPath())
	for _, kv := range [][2]string{
		{"CNI_COMMAND", call.Verb},
		{"CNI_CONTAINERID", call.ContainerID},
		{"CNI_NETNS", call.Netns},
		{"CNI_IFNAME", call.IfName},
		{"CNI_ARGS", call.Args},
	} {
		if kv[1] != "" {
			cmd.Env = append(cmd.Env, kv[0]+"="+kv[1])
		}
	}
	cmd.Env = append(cmd.Env, call.Env...)
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	return cmd, nil
}
