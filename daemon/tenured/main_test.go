package main

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/dirlock"
)

// started runs start with everything it could write below dir.
func started(t *testing.T, dir string, args, environ []string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // a daemon that starts after all stops at once
	args = append([]string{"--run-dir", filepath.Join(dir, "run"), "--state-dir", filepath.Join(dir, "state")}, args...)
	var out, errs bytes.Buffer
	code = start(ctx, args, environ, &out, &errs)
	return code, out.String(), errs.String()
}

func TestExitCodes(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "tenured.yaml")
	if err := os.WriteFile(bad, []byte("node-nam: n1\nip-masq: maybe\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args, environ  []string
		code           int
		stdout, stderr []string // what must be in them; nil: nothing at all
	}{
		"help":        {args: []string{"--help"}, code: exitOK, stdout: []string{"Usage: tenured", "--etcd-endpoints", "TENURED_"}},
		"version":     {args: []string{"--version"}, code: exitOK, stdout: []string{"tenured " + version}},
		"unknown":     {args: []string{"--nonsense"}, code: exitUsage, stderr: []string{"--nonsense"}},
		"argument":    {args: []string{"start"}, code: exitUsage, stderr: []string{`"start"`}},
		"environment": {environ: []string{"TENURED_LOG_LEVEL=loud"}, code: exitUsage, stderr: []string{"TENURED_LOG_LEVEL", "loud"}},
		"file":        {args: []string{"--config", bad}, code: exitUsage, stderr: []string{"node-nam", "ip-masq"}},
		"network config": {args: []string{"--new-cluster", "--network-config", `{"Network":"10.5.0.1/16","SubnetLen":40}`}, code: exitUsage,
			stderr: []string{"--network-config", "Network", "SubnetLen"}},
		"every fault at once": {args: []string{"--name", "muchtoolong", "--public-ip", "nonsense", "--exclude", "10.5.0.0/99"}, environ: []string{"TENURED_METRICS_LISTEN=nowhere"},
			code: exitUsage, stderr: []string{"--name", "--public-ip", "--exclude", "TENURED_METRICS_LISTEN"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			code, stdout, stderr := started(t, dir, c.args, c.environ)
			if code != c.code {
				t.Errorf("exit code %d, want %d\n%s", code, c.code, stderr)
			}
			says(t, "stdout", stdout, c.stdout)
			says(t, "stderr", stderr, c.stderr)
			if names := list(t, dir); len(names) > 0 {
				t.Errorf("it wrote %v", names)
			}
		})
	}
}

func says(t *testing.T, what, got string, want []string) {
	t.Helper()
	if len(want) == 0 && got != "" {
		t.Errorf("%s: %s", what, got)
	}
	for _, text := range want {
		if !strings.Contains(got, text) {
			t.Errorf("%s lacks %q:\n%s", what, text, got)
		}
	}
}

// TestSecondInstance ends before it touches anything.
func TestSecondInstance(t *testing.T) {
	dir := t.TempDir()
	unlock, err := dirlock.Hold(filepath.Join(dir, "run"), filepath.Join(dir, "state"))
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	code, _, stderr := started(t, dir, []string{"--node-name", "n1"}, nil)
	if code != exitFatal || !strings.Contains(stderr, "another tenured uses") {
		t.Errorf("exit code %d, want %d:\n%s", code, exitFatal, stderr)
	}
	for _, sub := range []string{"run", "state"} {
		if names := list(t, filepath.Join(dir, sub)); strings.Join(names, " ") != "lock" {
			t.Errorf("in %s there are %v", sub, names)
		}
	}
}

func TestLogger(t *testing.T) {
	var out bytes.Buffer
	log := newLogger(conf.Daemon{LogLevel: slog.LevelWarn, LogFormat: "json"}, &out)
	log.Info("not this")
	log.Warn("this", "key", "value")
	var line map[string]any
	if err := json.Unmarshal(out.Bytes(), &line); err != nil || line["msg"] != "this" || line["key"] != "value" {
		t.Errorf("logged %s, %v", &out, err)
	}
	out.Reset()
	newLogger(conf.Daemon{LogFormat: "text"}, &out).Info("this", "key", "value")
	if !strings.Contains(out.String(), "msg=this key=value") {
		t.Errorf("logged %s", &out)
	}
}

func TestUnsupported(t *testing.T) {
	parse := func(text string) conf.Network {
		t.Helper()
		n, _, err := conf.ParseNetwork([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for text, want := range map[string]string{
		`{"Network":"10.5.0.0/16"}`:                                                 "",
		`{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}`:                    "Backend.Type",
		`{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","DirectRouting":true}}`: "Backend.DirectRouting",
		`{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:5::/48"}`:        "",
	} {
		var fields []string
		for _, f := range conf.Unsupported(parse(text)) {
			fields = append(fields, f.Field)
		}
		if got := strings.Join(fields, " "); got != want {
			t.Errorf("%s: at fault %q, want %q", text, got, want)
		}
	}
}

func TestIdentity(t *testing.T) {
	boot, err := bootID()
	if err != nil {
		t.Fatal(err)
	}
	id, inode, ok := strings.Cut(boot, "/")
	if len(id) != 36 || inode == "" || !ok || strings.ContainsAny(boot, " \n") {
		t.Errorf("boot %q, want the kernel's UUID and the namespace's inode", boot)
	}
	if again, err := bootID(); err != nil || again != boot {
		t.Errorf("asked again the boot is %q, %v", again, err)
	}
	if uuid := productUUID(); uuid != strings.ToLower(strings.TrimSpace(uuid)) {
		t.Errorf("product UUID %q", uuid)
	}
}
