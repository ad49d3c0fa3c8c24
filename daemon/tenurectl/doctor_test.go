package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/tenure-cni/tenure/daemon/doctor"
)

// TestDoctorTable prints what is wrong with evidence and repair, and what is
// well in a line.
func TestDoctorTable(t *testing.T) {
	var out bytes.Buffer
	if err := doctorTable(&out, []doctor.Finding{
		{Code: "mtu", Severity: doctor.Error, Text: "too large", Evidence: "eth0 1400", Fix: "ip link set eth0 mtu 1500"},
		{Code: "daemon", Severity: doctor.Info, Text: "none runs"},
		{Code: "kernel", Severity: doctor.OK, Text: "6.1"},
	}); err != nil {
		t.Fatal(err)
	}
	const want = "ERROR  mtu     too large\n               eth0 1400\n               → ip link set eth0 mtu 1500\nINFO   daemon  none runs\nok     kernel  6.1\n"
	if out.String() != want {
		t.Errorf("printed\n%s, want\n%s", out.String(), want)
	}
}

// TestDoctor works without a daemon and beside one, and its exit code says
// whether an error is among what it found.
func TestDoctor(t *testing.T) {
	dir := t.TempDir()
	places := []string{"doctor", "-o", "json", "--run-dir", dir, "--state-dir", dir, "--cni-conf-dir", dir, "--cni-bin-dir", dir}
	find := func(args ...string) (int, []doctor.Finding) {
		t.Helper()
		code, out, said := ran(t.Context(), append(slices.Clone(places), args...)...)
		var all []doctor.Finding
		if err := json.Unmarshal([]byte(out), &all); err != nil || said != "" {
			t.Fatalf("%v, on standard error %q: %s", err, said, out)
		}
		if want := map[bool]int{true: exitStands, false: exitOK}[doctor.Failed(all)]; code != want {
			t.Errorf("exit code %d, want %d", code, want)
		}
		return code, all
	}
	has := func(all []doctor.Finding, severity doctor.Severity, code, part string) {
		t.Helper()
		if !slices.ContainsFunc(all, func(f doctor.Finding) bool {
			return f.Code == code && f.Severity == severity && strings.Contains(f.Text+f.Evidence, part)
		}) {
			t.Errorf("no %s %s with %q in %+v", severity, code, part, all)
		}
	}
	_, alone := find()
	has(alone, doctor.Info, "daemon", filepath.Join(dir, "tenured.sock"))
	has(alone, doctor.Warning, "cni-plugins", "portmap")

	code, beside := find("--socket", serve(t, sick()))
	if code != exitStands {
		t.Errorf("exit code %d beside a sick node", code)
	}
	has(beside, doctor.Error, "not-ready", "the deadline passed")
	has(beside, doctor.Warning, "foreign", "docker0 is in the way")

	for _, args := range [][]string{{"doctor", "-o", "xml"}, {"doctor", "now"}, {"doctor", "--nonsense"}} {
		if code, _, _ := ran(t.Context(), args...); code != exitUsage {
			t.Errorf("%v ends with %d, want %d", args, code, exitUsage)
		}
	}
}

// TestDoctorConfig: doctor looks where the daemon's configuration says, a flag
// wins, and a faulty file is said and no reason to stop.
func TestDoctorConfig(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "tenured.yaml")
	find := func(text string, args ...string) (all []doctor.Finding, out, said string) {
		t.Helper()
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, out, said = ran(t.Context(), append([]string{"doctor", "-o", "yaml", "--config", config, "--cni-bin-dir", dir}, args...)...)
		if err := yaml.UnmarshalStrict([]byte(out), &all); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return all, out, said
	}
	text := fmt.Sprintf("run-dir: %s/run\nstate-dir: %s/state\ncni-conf-file: %s/net.d/10-tenure.conflist\n", dir, dir, dir)
	all, out, said := find(text)
	if said != "" || len(all) == 0 || !strings.Contains(out, dir+"/run/tenured.sock") || !strings.Contains(out, dir+"/net.d") {
		t.Errorf("%s%s", said, out)
	}
	if _, out, _ := find(text, "--run-dir", dir+"/mine"); !strings.Contains(out, dir+"/mine/tenured.sock") {
		t.Error(out)
	}
	if all, _, said := find("run-dir: [\n", "--run-dir", dir); len(all) == 0 || !strings.Contains(said, "does not say where to look") {
		t.Errorf("a faulty file: %s", said)
	}
}

// TestFormsAreOffered: the shell completes -o of each.
func TestFormsAreOffered(t *testing.T) {
	for verb, want := range map[string]string{"status": "wide", "stranded": "ids", "doctor": "yaml"} {
		if _, out, _ := ran(t.Context(), "__complete", verb, "-o", ""); !strings.Contains(out, want+"\n") {
			t.Errorf("%s -o offers %s", verb, out)
		}
	}
}
