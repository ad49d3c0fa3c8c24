package shim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/tenure-cni/tenure/daemon/api"
)

const (
	// maxContainerID is far beyond what runtimes use (64 hexadecimal digits).
	maxContainerID = 128
	// maxPath is PATH_MAX less the final zero.
	maxPath = 4095
)

// begin checks what needs no daemon and makes the call of a verb. A DEL is
// lenient: what is wrong with its configuration besides the socket must not
// keep a pod from going.
func (s *Shim) begin(verb string, args *skel.CmdArgs, strict bool) (call, error) {
	socket, cniVersion, err := readConfig(args.StdinData, s.API, strict)
	s.cniVersion = cniVersion
	if err != nil {
		return call{}, err
	}
	if err := checkArgs(args, strict); err != nil {
		return call{}, err
	}
	return call{
		socket: socket,
		path:   s.API + verb,
		req: api.Request{
			ContainerID: args.ContainerID,
			Netns:       args.Netns,
			IfName:      args.IfName,
			Args:        args.Args,
			Path:        args.Path,
			Config:      args.StdinData,
		},
	}, nil
}

// checkArgs adds to what skel has checked already: characters, and the length
// of the interface's name.
func checkArgs(args *skel.CmdArgs, strict bool) error {
	invalid := func(msg, details string) error {
		return types.NewError(api.CodeInvalidEnvironment, msg, details)
	}
	switch {
	case len(args.ContainerID) > maxContainerID:
		return invalid("CNI_CONTAINERID is too long", fmt.Sprintf("%d bytes, at most %d", len(args.ContainerID), maxContainerID))
	case strict && len(args.Netns) > maxPath:
		return invalid("CNI_NETNS is too long for a path", fmt.Sprintf("%d bytes, at most %d", len(args.Netns), maxPath))
	case strict && strings.Contains(args.IfName, "%"):
		return invalid("CNI_IFNAME has a %, which the kernel takes for a pattern", args.IfName)
	}
	return nil
}

// readConfig takes from the configuration the little that leads to the daemon,
// which judges the rest: the socket and the CNI version.
func readConfig(b []byte, apiPath string, strict bool) (socket, cniVersion string, err error) {
	var conf struct {
		CNIVersion string          `json:"cniVersion"`
		Tenure     json.RawMessage `json:"tenure"`
		IPAM       struct {
			Tenure json.RawMessage `json:"tenure"`
		} `json:"ipam"`
	}
	if err := json.Unmarshal(b, &conf); err != nil {
		return "", "", types.NewError(api.CodeDecode, "cannot decode the network configuration", brief(err))
	}
	section, place := conf.Tenure, `"tenure"`
	if apiPath == api.PathIPAM {
		section, place = conf.IPAM.Tenure, `"tenure" of "ipam"`
	}
	socket, err = readSocket(section, strict)
	if err != nil {
		return "", conf.CNIVersion, types.NewError(api.CodeInvalidConfig, "bad section "+place+" in the network configuration", brief(err))
	}
	return socket, conf.CNIVersion, nil
}

// brief is an error's text without the end of what it quotes, which may be of any
// length.
func brief(err error) string {
	const most = 400
	text := err.Error()
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

func readSocket(section json.RawMessage, strict bool) (string, error) {
	tenure := struct {
		Socket string `json:"socket"`
	}{api.DefaultSocket}
	if section != nil {
		dec := json.NewDecoder(bytes.NewReader(section))
		if strict {
			dec.DisallowUnknownFields()
		}
		if err := dec.Decode(&tenure); err != nil {
			return "", err
		}
	}
	if tenure.Socket == "" {
		return api.DefaultSocket, nil
	}
	if !filepath.IsAbs(tenure.Socket) {
		return "", fmt.Errorf("socket %q is not an absolute path", tenure.Socket)
	}
	return tenure.Socket, nil
}
