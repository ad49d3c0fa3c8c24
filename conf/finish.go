package conf

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"unicode"
)

const (
	maxName     = 6   // bridge, vxlan and IPv6 device names must fit 15 bytes with a VNI
	maxNodeName = 253 // a DNS name's length
	maxSocket   = 107 // sockaddr_un holds 108 bytes with the final zero
)

// finish fills in the defaults that depend on other settings and judges the
// whole.
func (f *daemonForm) finish(l *loader) {
	f.finishNames(l)
	f.finishEtcd(l)
	f.finishCluster(l)
	f.finishPaths(l)
	f.finishCommand(l)
	f.finishAddresses(l)
	f.finishLog(l)
}

func (f *daemonForm) finishNames(l *loader) {
	if !isName(f.Name) {
		l.fault("name", "%q is not a lower-case letter followed by letters and digits, %d bytes in all at most", f.Name, maxName)
	} else if other, six := strings.CutSuffix(f.Name, "6"); six {
		l.fault("name", "%q ends in 6: its vxlan device would be taken for the IPv6 one of an instance %q", f.Name, other)
	}
	if !l.given("node-name") {
		host, err := os.Hostname()
		if err != nil {
			l.fault("node-name", "no host name to take as default: %v", err)
			return
		}
		f.NodeName = host
	}
	bad := func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }
	if f.NodeName == "" || len(f.NodeName) > maxNodeName || strings.ContainsFunc(f.NodeName, bad) {
		l.fault("node-name", "%q is not a name of 1 to %d bytes without spaces", f.NodeName, maxNodeName)
	}
}

func isName(s string) bool {
	for i, r := range s {
		letter, digit := r >= 'a' && r <= 'z', r >= '0' && r <= '9'
		if !letter && (i == 0 || !digit) {
			return false
		}
	}
	return s != "" && len(s) <= maxName
}

func (f *daemonForm) finishEtcd(l *loader) {
	if f.EtcdEmbedded {
		if err := f.checkEmbeddedListen(); err != nil {
			l.fault("etcd-embedded-listen", "%v", err)
		}
		if !l.given("etcd-endpoints") {
			f.Etcd.Endpoints = []string{f.EtcdEmbeddedListen}
		}
	} else if l.given("etcd-embedded-listen") {
		l.warnings = append(l.warnings, l.source("etcd-embedded-listen")+" has no effect without --etcd-embedded")
	}
	for _, fault := range f.Etcd.Check() {
		// The default endpoint of an embedded etcd is judged above.
		if fault.Field != "etcd-endpoints" || l.given("etcd-endpoints") {
			l.fault(fault.Field, "%s", fault.Text)
		}
	}
}

// checkEmbeddedListen takes a URL at one of this machine's addresses; with https
// the client's certificate is the server's too.
func (f *daemonForm) checkEmbeddedListen() error {
	if err := checkURL(f.EtcdEmbeddedListen, "http", "https"); err != nil {
		return err
	}
	u, err := url.Parse(f.EtcdEmbeddedListen)
	if err != nil {
		return err
	}
	if _, err := netip.ParseAddr(u.Hostname()); err != nil && u.Hostname() != "localhost" {
		return fmt.Errorf("%q names no address to listen on", f.EtcdEmbeddedListen)
	}
	if u.Scheme == "https" && f.Etcd.CertFile == "" {
		return errors.New("https needs --etcd-certfile and --etcd-keyfile, which it shows its clients")
	}
	return nil
}

func (f *daemonForm) finishCluster(l *loader) {
	const name = "network-config"
	if f.networkConfig == "" {
		if f.NewCluster {
			l.fault("new-cluster", "needs --network-config")
		}
		return
	}
	if !f.NewCluster {
		l.fault(name, "is used with --new-cluster only; a living cluster's config is the etcd key %s", path.Join(f.Etcd.Prefix, "config"))
	}
	b, err := ReadNetworkConfig(f.networkConfig)
	if err != nil {
		l.fault(name, "%v", err)
		return
	}
	_, warnings, err := ParseNetwork(b)
	for _, w := range warnings {
		f.Warnings = append(f.Warnings, l.source(name)+": "+w)
	}
	var faults Faults
	if errors.As(err, &faults) {
		for _, fault := range faults {
			l.fault(name, "%s", fault)
		}
		return
	}
	f.NetworkConfig = b
}

// ReadNetworkConfig returns the JSON of a --network-config argument, which is
// the JSON itself or @FILE.
func ReadNetworkConfig(arg string) ([]byte, error) {
	file, isFile := strings.CutPrefix(arg, "@")
	if !isFile {
		return []byte(arg), nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read network config: %w", err)
	}
	return b, nil
}

func (f *daemonForm) finishPaths(l *loader) {
	if !l.given("socket") {
		f.Socket = filepath.Join(f.RunDir, "tenured.sock")
	}
	if !l.given("subnet-file") {
		f.SubnetFile = filepath.Join(f.RunDir, "subnet.env")
	}
	for _, p := range []struct {
		name, value string
		check       bool
	}{
		{"run-dir", f.RunDir, true},
		{"state-dir", f.StateDir, true},
		{"socket", f.Socket, l.given("socket")},
		{"subnet-file", f.SubnetFile, l.given("subnet-file")},
		{"cni-conf-file", f.CNIConfFile, f.CNIConfFile != ""},
	} {
		if p.check && (!filepath.IsAbs(p.value) || filepath.Clean(p.value) != p.value || p.value == "/") {
			l.fault(p.name, "%q is not an absolute path without . or .. or a final slash", p.value)
		}
	}
	if len(f.Socket) > maxSocket {
		l.fault("socket", "%q is longer than the %d bytes that a unix socket's path may have", f.Socket, maxSocket)
	}
	if f.CNIConfFile != "" && filepath.Ext(f.CNIConfFile) != ".conflist" {
		l.fault("cni-conf-file", "%q does not end in .conflist, so no runtime would read it as a list of plugins", f.CNIConfFile)
	}
}

// finishCommand refuses a command that could not be run on the day it is
// needed.
func (f *daemonForm) finishCommand(l *loader) {
	const name = "on-stranded"
	if f.OnStranded == "" {
		return
	}
	if !filepath.IsAbs(f.OnStranded) {
		l.fault(name, "%q is not an absolute path", f.OnStranded)
		return
	}
	info, err := os.Stat(f.OnStranded)
	switch {
	case err != nil:
		l.fault(name, "%v (it is the path of a file and nothing else: no shell is involved and arguments belong into a script)", err)
	case !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0:
		l.fault(name, "%s is not an executable file", f.OnStranded)
	}
}

func (f *daemonForm) finishAddresses(l *loader) {
	for _, pattern := range f.Ifaces {
		if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
			l.fault("iface", "%q is neither a name nor a shell pattern", pattern)
		}
	}
	f.finishPublicIPs(l)
	if f.AddressCooldown < 0 {
		l.fault("address-cooldown", "%s is negative", f.AddressCooldown)
	}
	for _, text := range f.exclude {
		p, err := netip.ParsePrefix(text)
		if err != nil || p != p.Masked() {
			l.fault("exclude", "%q is not a CIDR without host bits", text)
			continue
		}
		f.Exclude = append(f.Exclude, p)
	}
	if f.MetricsListen != "" {
		if err := checkListen(f.MetricsListen); err != nil {
			l.fault("metrics-listen", "%v", err)
		}
	}
}

// finishPublicIPs takes one address of each family at most.
func (f *daemonForm) finishPublicIPs(l *loader) {
	for _, text := range f.publicIPs {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" || a.Is4In6() || !a.IsGlobalUnicast() {
			l.fault("public-ip", "%q is not a unicast IP address", text)
			continue
		}
		one := &f.PublicIP
		if a.Is6() {
			one = &f.PublicIP6
		}
		if one.IsValid() {
			l.fault("public-ip", "%s and %s are of one family; a node announces one address of each", one, a)
			continue
		}
		*one = a
	}
}

func (f *daemonForm) finishLog(l *loader) {
	levels := map[string]slog.Level{
		"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError,
	}
	level, ok := levels[f.logLevel]
	if !ok {
		l.fault("log-level", "%q is none of debug, info, warn, error", f.logLevel)
	}
	f.LogLevel = level
	if f.LogFormat != "text" && f.LogFormat != "json" {
		l.fault("log-format", "%q is neither text nor json", f.LogFormat)
	}
}
