package main

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

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

	for _, args := range [][]string{{"doctor", "-o", "yaml"}, {"doctor", "now"}, {"doctor", "--nonsense"}} {
		if code, _, _ := ran(t.Context(), args...); code != exitUsage {
			t.Errorf("%v ends with %d, want %d", args, code, exitUsage)
		}
	}
}
