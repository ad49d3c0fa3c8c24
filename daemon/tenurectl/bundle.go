package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenure-cni/tenure/daemon/doctor"
	"github.com/tenure-cni/tenure/daemon/install"
)

// bundleTimeout bounds the command; each program in it has a part of that.
const (
	bundleTimeout  = 2 * time.Minute
	programTimeout = 10 * time.Second
)

func newSupportBundle(socket *string) *cobra.Command {
	var (
		o            doctor.Options
		file, config string
	)
	cmd := &cobra.Command{
		Use: "support-bundle", Short: "collect what explains this node into one file, without secrets", Args: cobra.NoArgs,
		Long: `support-bundle writes a tar.gz with status, findings of the doctor, versions,
configuration, ledger, node.json, CNI configurations, what the kernel has (links,
addresses, routes, neighbours, forwarding entries, filters, firewall) and the last
lines of the log.

The files that --etcd-keyfile and --etcd-password-file name are never opened, and
what looks like a password, a key, a token or a URL with a user in it is replaced.
Names, addresses and container IDs are in it: read it before you hand it on.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			toLookAt(cmd, &o, *socket, config)
			ctx, cancel := context.WithTimeout(cmd.Context(), bundleTimeout)
			defer cancel()
			if file == "" {
				file = "tenure-" + time.Now().UTC().Format("20060102-150405") + ".tar.gz"
			}
			if err := writeBundle(file, collect(ctx, o, config)); err != nil {
				return failed(exitStands, "write %s: %w", file, err)
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), file)
			return err
		},
	}
	fs := cmd.Flags()
	fs.StringVarP(&file, "output", "o", "", "`file` to write (default tenure-TIME.tar.gz here)")
	doctorFlags(fs, &o, &config)
	return cmd
}

// part is one file of the bundle.
type part struct {
	name string
	text []byte
}

// collect gathers all that can be had; what cannot is said in its place.
func collect(ctx context.Context, o doctor.Options, config string) []part {
	facts := doctor.Observe(ctx, o)
	all := []part{
		{"version", []byte("tenurectl " + version + "\n")},
		inJSON("status.json", facts.Status, facts.StatusErr),
		inJSON("doctor.json", doctor.Judge(facts), ""),
		copyOf("tenured.yaml", config),
		copyOf("ledger.json", filepath.Join(o.RunDir, "ledger.json")),
		copyOf("subnet.env", filepath.Join(o.RunDir, "subnet.env")),
		copyOf("node.json", filepath.Join(o.StateDir, "node.json")),
	}
	for _, f := range facts.CNI.Files {
		all = append(all, copyOf("net.d/"+f.Name, filepath.Join(o.ConfDir, f.Name)))
	}
	lines := []string{
		"uname -a", "ip -d -s link", "ip addr", "ip route show table all", "ip -6 route", "ip rule", "ip neigh", "bridge fdb", "bridge link",
		"iptables-save -c", "nft list ruleset", "ss -xlp", "ls -l " + o.BinDir, "ls -l " + filepath.Dir(o.Socket) + "/del",
		"journalctl --no-pager -n 2000 -u " + install.Unit,
	}
	for name, link := range facts.Links {
		overlay := link.Kind == "vxlan" && strings.HasPrefix(name, o.Instance+".")
		if overlay || slices.Contains(facts.Uplink.Fenced, name) {
			lines = append(lines, "tc -s filter show dev "+name+" ingress", "tc -s filter show dev "+name+" egress")
		}
	}
	for _, line := range lines {
		all = append(all, outputOf(ctx, line))
	}
	for i := range all {
		all[i].text = withoutSecrets(all[i].text)
	}
	return all
}

func inJSON(name string, v any, fault string) part {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil || fault != "" {
		return part{name, []byte(errors.Join(err, errors.New(fault)).Error())}
	}
	return part{name, b}
}

func copyOf(name, path string) part {
	b, err := os.ReadFile(path)
	if err != nil {
		return part{name, []byte(err.Error() + "\n")}
	}
	return part{name, b}
}

func outputOf(ctx context.Context, line string) part {
	ctx, cancel := context.WithTimeout(ctx, programTimeout)
	defer cancel()
	words := strings.Fields(line)
	out, err := exec.CommandContext(ctx, words[0], words[1:]...).CombinedOutput()
	if err != nil {
		out = append(out, "\n"+line+": "+err.Error()+"\n"...)
	}
	name := strings.Trim(regexp.MustCompile(`[^a-zA-Z0-9]+`).ReplaceAllString(line, "-"), "-")
	return part{"host/" + name + ".txt", out}
}

// withoutSecrets replaces what must not leave the host, wherever it stands: a
// password may have been put where none belongs.
func withoutSecrets(text []byte) []byte {
	for _, r := range []struct{ find, by string }{
		{`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\z)`, "<removed: a private key>"},
		{`([a-z][a-z0-9+.-]*://)[^/@\s"']+@`, "${1}<removed>@"},
		// key: value, key=value, "key": "value"; the names of files with secrets stay.
		{`(?im)((?:password|passwd|passphrase|secret|token|apikey|api_key|private[_-]?key|client-key-data|authorization)["']?[ \t]*[:=][ \t]*)("(?:[^"\\]|\\.)*"|'[^']*'|[^\s,}\]]+(?:[ \t]+[^\s,}\]]+)?)`, "${1}<removed>"},
	} {
		text = regexp.MustCompile(r.find).ReplaceAll(text, []byte(r.by))
	}
	return text
}

// writeBundle writes the file whole or not at all, for its owner only.
func writeBundle(path string, all []part) (err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(path)
		}
	}()
	defer func() { err = errors.Join(err, f.Close()) }()
	return pack(f, all)
}

func pack(w io.Writer, all []part) error {
	zip := gzip.NewWriter(w)
	archive := tar.NewWriter(zip)
	slices.SortFunc(all, func(a, b part) int { return strings.Compare(a.name, b.name) })
	for _, p := range all {
		head := &tar.Header{Name: "tenure/" + p.name, Mode: 0o600, Size: int64(len(p.text)), ModTime: time.Now()}
		if err := archive.WriteHeader(head); err != nil {
			return err
		}
		if _, err := archive.Write(p.text); err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), zip.Close())
}
