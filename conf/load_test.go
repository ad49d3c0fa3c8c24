package conf

import (
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func mustLoad(t *testing.T, args, environ []string) Daemon {
	t.Helper()
	d, err := Load(args, environ, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// fields returns what Load finds at fault.
func fields(t *testing.T, args, environ []string) Faults {
	t.Helper()
	_, err := Load(args, environ, io.Discard)
	if err == nil {
		return nil
	}
	var faults Faults
	if !errors.As(err, &faults) {
		t.Fatalf("%T %v is not Faults", err, err)
	}
	return faults
}

func TestLoadDefaults(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	want := Daemon{
		Name: "tenure", NodeName: host,
		Etcd:               Etcd{Endpoints: []string{"http://127.0.0.1:2379"}, Prefix: "/tenure/network"},
		EtcdEmbeddedListen: "http://127.0.0.1:2379",
		RunDir:             "/run/tenure", StateDir: "/var/lib/tenure",
		Socket: "/run/tenure/tenured.sock", SubnetFile: "/run/tenure/subnet.env",
		IPMasq: true, MasqRandomFully: true, ForwardAccept: true,
		AddressCooldown: time.Minute, MetricsListen: "127.0.0.1:9475",
		LogLevel: slog.LevelInfo, LogFormat: "text",
	}
	if diff := cmp.Diff(want, mustLoad(t, nil, nil), netipAddrs, netipValues); diff != "" {
		t.Error(diff)
	}
}

func TestLoadOrder(t *testing.T) {
	file := write(t, "tenured.yaml", `
name: file
node-name: file
run-dir: /run/file
iface: [eth0, "ens,3"]
ip-masq: false
address-cooldown: 5s
etcd-endpoints: http://192.0.2.1:2379,http://192.0.2.2:2379
exclude:
log-level: debug
`)
	environ := []string{"HOME=/root", "TENURED_NODE_NAME=env", "TENURED_NAME=env", "TENURED_METRICS_LISTEN=", "TENURED_SERVICE_HOST=10.0.0.1", "TENURED_CONFIG=" + file}
	d := mustLoad(t, []string{"--name", "flag", "--exclude=10.5.0.0/25", "--exclude=10.5.9.0/24,fd00::/64", "--log-level=warn"}, environ)
	got := []any{d.Name, d.NodeName, d.RunDir, d.Socket, d.Ifaces, d.IPMasq, d.AddressCooldown, d.Etcd.Endpoints, d.MetricsListen, d.LogLevel, len(d.Exclude)}
	want := []any{"flag", "env", "/run/file", "/run/file/tenured.sock", []string{"eth0", "ens,3"}, false, 5 * time.Second,
		[]string{"http://192.0.2.1:2379", "http://192.0.2.2:2379"}, "", slog.LevelWarn, 3}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if len(d.Warnings) != 1 || !strings.Contains(d.Warnings[0], "TENURED_SERVICE_HOST") {
		t.Errorf("warnings %q", d.Warnings)
	}
}

func TestLoadEveryFaultAtOnce(t *testing.T) {
	file := write(t, "bad.yaml", "nick: x\nstate-dir: var\nforward-accept: maybe\nlog-format: xml\nconfig: y\nnode-name: 0123\n")
	environ := []string{"TENURED_ADDRESS_COOLDOWN=60", "TENURED_EXCLUDE=10.5.0.1/24", "TENURED_ETCD_PREFIX=tenure/"}
	args := []string{
		"--config", file, "--name", "Tenure", "--bogus=1", "stray", "--ip-masq=perhaps", "--log-level", "loud",
		"--public-ip=192.0.2.300", "--iface=[", "--etcd-endpoints=127.0.0.1:2379", "--metrics-listen=9475",
		"--socket=/" + strings.Repeat("x", 110), "--etcd-certfile=/nonexistent/c.pem", "--new-cluster",
	}
	var got []string
	for _, f := range fields(t, args, environ) {
		got = append(got, strings.ReplaceAll(f.Field, file, "F"))
	}
	want := []string{
		"flag --ip-masq", "flag --bogus", "command line", "environment TENURED_ADDRESS_COOLDOWN",
		"file F: config", "file F: forward-accept", "file F: nick", "file F: node-name",
		"flag --name", "flag --etcd-endpoints", "environment TENURED_ETCD_PREFIX", "flag --etcd-certfile", "flag --etcd-certfile",
		"flag --new-cluster", "file F: state-dir", "flag --socket", "flag --iface", "flag --public-ip",
		"environment TENURED_EXCLUDE", "flag --metrics-listen", "flag --log-level", "file F: log-format",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestLoadOneFault(t *testing.T) {
	secret := write(t, "password", "geheim\n")
	program := write(t, "program", "#!/bin/sh\n")
	if err := os.Chmod(program, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args  string
		field string // empty: no fault
	}{
		{"--name abcdef", ""}, {"--name abcdefg", "flag --name"}, {"--name 1a", "flag --name"}, {"--name=", "flag --name"},
		{"--node-name=", "flag --node-name"}, {"--node-name=a\tb", "flag --node-name"},
		{"--etcd-endpoints=", "flag --etcd-endpoints"},
		{"--etcd-endpoints=http://h:2379/x", "flag --etcd-endpoints"},
		{"--etcd-endpoints=http://h", "flag --etcd-endpoints"},
		{"--etcd-endpoints=http://h:0", "flag --etcd-endpoints"},
		{"--etcd-endpoints=ftp://h:1", "flag --etcd-endpoints"},
		{"--etcd-endpoints=https://[fd00::5]:2379/", ""},
		{"--etcd-prefix=/", "flag --etcd-prefix"}, {"--etcd-prefix=/a/", "flag --etcd-prefix"}, {"--etcd-prefix=/coreos.com/network", ""},
		{"--etcd-username=u", "flag --etcd-username"}, {"--etcd-username=u --etcd-password-file=" + secret, ""},
		{"--etcd-username=u --etcd-password-file=/nonexistent/p", "flag --etcd-password-file"},
		{"--etcd-embedded --etcd-embedded-listen=http://h:2379", "flag --etcd-embedded-listen"},
		{"--etcd-embedded --etcd-embedded-listen=https://192.0.2.11:2379", "flag --etcd-embedded-listen"},
		{"--etcd-embedded --etcd-embedded-listen=https://192.0.2.11:2379 --etcd-certfile=" + secret + " --etcd-keyfile=" + secret, ""},
		{`--network-config={"Network":"10.5.0.0/16"}`, "flag --network-config"},
		{"--public-ip=127.0.0.1", "flag --public-ip"}, {"--public-ip=192.0.2.11,2001:db8::11", ""},
		{"--public-ip=2001:db8::11,192.0.2.11", ""}, {"--public-ip=2001:db8::11", ""}, {"--public-ip=", ""},
		{"--public-ip=192.0.2.11,192.0.2.12", "flag --public-ip"}, {"--public-ip=2001:db8::11,2001:db8::11", "flag --public-ip"},
		{"--public-ip=192.0.2.11,", "flag --public-ip"}, {"--public-ip=192.0.2.11,\t2001:db8::11", "flag --public-ip"},
		{"--public-ip=fe80::1", "flag --public-ip"}, {"--public-ip=2001:db8::11%eth0", "flag --public-ip"},
		{"--public-ip=::ffff:192.0.2.11", "flag --public-ip"}, {"--public-ip=192.0.2.11/24", "flag --public-ip"}, {"--public-ip=ff0e::1", "flag --public-ip"},
		{"--run-dir=run", "flag --run-dir"}, {"--run-dir=/run/../x", "flag --run-dir"}, {"--run-dir=/run/x/", "flag --run-dir"},
		{"--cni-conf-file=/etc/cni/net.d/10-x.conf", "flag --cni-conf-file"}, {"--cni-conf-file=/etc/cni/net.d/10-x.conflist", ""},
		{"--on-stranded=" + program, ""}, {"--on-stranded=", ""}, {"--on-stranded=true", "flag --on-stranded"},
		{"--on-stranded=" + secret, "flag --on-stranded"}, {"--on-stranded=" + filepath.Dir(program), "flag --on-stranded"},
		{"--on-stranded=" + program + "\t--now", "flag --on-stranded"}, {"--on-stranded=/nonexistent/p", "flag --on-stranded"},
		{"--address-cooldown=-1s", "flag --address-cooldown"}, {"--address-cooldown=0s", ""},
		{"--metrics-listen=:70000", "flag --metrics-listen"}, {"--metrics-listen=[::1]:0", ""},
		{"--config=/nonexistent/c.yaml", "flag --config"},
		{"--name", "command line"}, {"-x", "flag -x"}, {"--no-such", "flag --no-such"},
	} {
		faults := fields(t, strings.Split(c.args, " "), nil)
		if (c.field == "") != (len(faults) == 0) || len(faults) > 1 || (len(faults) == 1 && faults[0].Field != c.field) {
			t.Errorf("%s: want a fault of %q, got %v", c.args, c.field, faults)
		}
	}
}

func TestLoadBadFiles(t *testing.T) {
	for text, part := range map[string]string{
		"name: a\nname: b\n": "already set",
		"- name\n":           "name: value",
		"name: [\n":          "yaml",
	} {
		file := write(t, "c.yaml", text)
		faults := fields(t, []string{"--config", file}, nil)
		if len(faults) != 1 || faults[0].Field != "file "+file || !strings.Contains(faults[0].Text, part) {
			t.Errorf("%q: %v", text, faults)
		}
	}
	mustLoad(t, []string{"--config", write(t, "empty.yaml", "# nothing\n")}, nil)
}

func TestLoadCluster(t *testing.T) {
	const network = `{"Network":"10.5.0.0/16","EnableNFTables":true}`
	want := mustNetwork(t, network)
	asYAML := write(t, "c.yaml", "new-cluster: true\netcd-embedded: true\nnetwork-config:\n  Network: 10.5.0.0/16\n  EnableNFTables: true\n")
	for name, args := range map[string][]string{
		"JSON": {"--new-cluster", "--etcd-embedded", "--network-config", network},
		"file": {"--new-cluster", "--etcd-embedded", "--network-config", "@" + write(t, "n.json", network)},
		"YAML": {"--config", asYAML},
	} {
		d := mustLoad(t, args, nil)
		if got := mustNetwork(t, string(d.NetworkConfig)); got != want || len(d.Warnings) != 1 {
			t.Errorf("%s: %s, warnings %q", name, d.NetworkConfig, d.Warnings)
		}
	}
	faults := fields(t, []string{"--new-cluster", "--network-config", `{"Network":"10.5.0.1/16","SubnetLen":40}`}, nil)
	if len(faults) != 2 || faults[0].Field != "flag --network-config" || !strings.HasPrefix(faults[1].Text, "SubnetLen: ") {
		t.Errorf("faults %v", faults)
	}
}

func TestLoadEmbedded(t *testing.T) {
	d := mustLoad(t, []string{"--etcd-embedded", "--etcd-embedded-listen=http://127.0.0.1:4001"}, nil)
	if diff := cmp.Diff([]string{"http://127.0.0.1:4001"}, d.Etcd.Endpoints); diff != "" {
		t.Error(diff)
	}
	d = mustLoad(t, []string{"--etcd-embedded", "--etcd-endpoints=http://192.0.2.1:2379"}, nil)
	if diff := cmp.Diff([]string{"http://192.0.2.1:2379"}, d.Etcd.Endpoints); diff != "" {
		t.Error(diff)
	}
}

// TestLoadPublicIP: one of each family, in any order and from any source.
func TestLoadPublicIP(t *testing.T) {
	four, six := netip.MustParseAddr("192.0.2.11"), netip.MustParseAddr("2001:db8::11")
	for name, c := range map[string]struct {
		args         []string
		want4, want6 netip.Addr
	}{
		"none":            {nil, netip.Addr{}, netip.Addr{}},
		"IPv4":            {[]string{"--public-ip=192.0.2.11"}, four, netip.Addr{}},
		"IPv6":            {[]string{"--public-ip=2001:db8::11"}, netip.Addr{}, six},
		"both":            {[]string{"--public-ip=192.0.2.11,2001:db8::11"}, four, six},
		"the other first": {[]string{"--public-ip=2001:db8::11,192.0.2.11"}, four, six},
		"given twice":     {[]string{"--public-ip=2001:db8::11", "--public-ip=192.0.2.11"}, four, six},
		"YAML, a list":    {[]string{"--config", write(t, "l.yaml", "public-ip: [192.0.2.11, '2001:db8::11']\n")}, four, six},
		"YAML, a text":    {[]string{"--config", write(t, "t.yaml", "public-ip: 192.0.2.11,2001:db8::11\n")}, four, six},
	} {
		if d := mustLoad(t, c.args, nil); d.PublicIP != c.want4 || d.PublicIP6 != c.want6 {
			t.Errorf("%s: %s and %s", name, d.PublicIP, d.PublicIP6)
		}
	}
}

func TestHelpAndVersion(t *testing.T) {
	var out strings.Builder
	if _, err := Load([]string{"--help"}, nil, &out); !errors.Is(err, pflag.ErrHelp) {
		t.Fatal(err)
	}
	var form daemonForm
	form.flagSet().VisitAll(func(f *pflag.Flag) {
		lines := 0
		for line := range strings.Lines(out.String()) {
			if name, _, _ := strings.Cut(strings.TrimSpace(line), " "); strings.TrimSuffix(name, "[=true|false]") == "--"+f.Name {
				lines++
			}
		}
		if lines != 1 || f.Usage == "" {
			t.Errorf("--%s has %d lines in\n%s", f.Name, lines, out.String())
		}
	})
	d, err := Load([]string{"--version", "--config=/nonexistent"}, nil, io.Discard)
	if err != nil || !d.ShowVersion {
		t.Errorf("%+v, %v", d, err)
	}
}

func TestPassword(t *testing.T) {
	e := Etcd{PasswordFile: write(t, "p", " geheim \n")}
	if p, err := e.Password(); p != " geheim " || err != nil {
		t.Errorf("%q, %v", p, err)
	}
	if p, err := (Etcd{}).Password(); p != "" || err != nil {
		t.Errorf("%q, %v", p, err)
	}
	if _, err := (Etcd{PasswordFile: "/nonexistent"}).Password(); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// TestLoadWholeFile: nothing of a file is passed over.
func TestLoadWholeFile(t *testing.T) {
	for text, ok := range map[string]bool{
		"": true, "# nothing\n": true, "---\n": true, "~": true, "null # nothing\n": true, "%YAML 1.1\n---\nname: t\n...\n": true, "--- # first\nname: t\n---\n# nothing\n": true,
		"node-name: |-\n  n---\nname: t\n": true, "name: t\n---\nnode-name: n1\n": false, "name: t\n...\nnode-name: n1\n": false, "name: t\n--- {}\n": false,
		"&0,\nname: t\n": false, "&0,": false,
	} {
		if faults := fields(t, []string{"--config", write(t, "tenured.yaml", text)}, nil); (len(faults) == 0) != ok {
			t.Errorf("%q: %v", text, faults)
		}
	}
}
