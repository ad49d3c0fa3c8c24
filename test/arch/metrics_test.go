package arch

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// What is shipped for monitoring, and the page that explains it.
const (
	alerts     = "conf/prometheus/tenure-alerts.yaml"
	alertTests = "conf/prometheus/tenure-alerts.test.yaml"
	dashboard  = "conf/grafana/tenure.json"
	seeing     = "docs/seeing.md"
)

func readFile(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// metricNames are the names of metrics in a package: every text of that form.
func metricNames(c *code) map[string]bool {
	form := regexp.MustCompile(`^tenure_[a-z0-9_]+$`)
	names := map[string]bool{}
	for _, file := range c.files {
		ast.Inspect(file, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if text, ok := c.text(lit); ok && form.MatchString(text) {
					names[text] = true
				}
			}
			return true
		})
	}
	return names
}

// metricsIn are the metrics that a text names; those that a histogram is made
// of count as the histogram.
func metricsIn(text string, known map[string]bool) map[string]bool {
	names := map[string]bool{}
	for _, name := range regexp.MustCompile(`\btenure_[a-z0-9_]+\b`).FindAllString(text, -1) {
		for _, part := range []string{"_bucket", "_sum", "_count"} {
			if whole, cut := strings.CutSuffix(name, part); cut && known[whole] {
				name = whole
			}
		}
		names[name] = true
	}
	return names
}

// metricsOfProduct are all of them; the server is the only one that has any.
func metricsOfProduct(t *testing.T) map[string]bool {
	t.Helper()
	w := load(t)
	all := metricNames(w.check(t, w.byPath[module+"/daemon/server"]))
	for _, name := range []string{"tenure_state", "tenure_cni_seconds", "tenure_cni_calls_total", "tenure_lease_proofs_total"} {
		if !all[name] {
			t.Fatalf("%s is not among the metrics found in the sources: the check looks in the wrong place", name)
		}
	}
	for _, p := range w.product() {
		if p.ImportPath == module+"/daemon/server" {
			continue
		}
		for _, path := range p.Imports {
			if below(path, "github.com/prometheus/client_golang") {
				t.Errorf("%s imports %s\n\tmetrics are all made in daemon/server, so that a reader finds them", p.ImportPath, path)
			}
		}
	}
	return all
}

// TestMetricsAreNamedAsTheyAre: no alert waits for a metric that there is not,
// and each that there is can be looked up.
func TestMetricsAreNamedAsTheyAre(t *testing.T) {
	known := metricsOfProduct(t)
	for _, file := range []string{alerts, alertTests, dashboard, seeing, "README.md"} {
		for _, name := range slices.Sorted(maps.Keys(metricsIn(readFile(t, file), known))) {
			if !known[name] {
				t.Errorf("%s names %s, which no source has", file, name)
			}
		}
	}
	for _, file := range []string{seeing, dashboard} {
		in := metricsIn(readFile(t, file), known)
		for _, name := range slices.Sorted(maps.Keys(known)) {
			if !in[name] {
				t.Errorf("%s does not have %s", file, name)
			}
		}
	}
	if got := metricsIn("tenure_a_bucket tenure_b_count{x} tenure-c", map[string]bool{"tenure_a": true}); !maps.Equal(got, map[string]bool{"tenure_a": true, "tenure_b_count": true}) {
		t.Errorf("metrics found: %v", got)
	}
}

// panel is a part of the dashboard, as far as it is judged.
type panel struct {
	ID      int
	Title   string
	Targets []struct{ Expr string }
}

// expressions are what a dashboard asks for, with what Grafana puts into them.
func expressions(t *testing.T, text string) []string {
	t.Helper()
	var d struct {
		UID        string
		Panels     []panel
		Templating struct {
			List []struct {
				Name  string
				Query any
			}
		}
	}
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		t.Fatal(err)
	}
	given := strings.NewReplacer("$__rate_interval", "5m", "$job", ".*", "$node", ".*")
	var all []string
	seen := map[int]string{}
	for _, p := range d.Panels {
		if other, twice := seen[p.ID]; twice || p.ID == 0 || p.Title == "" || len(p.Targets) == 0 {
			t.Errorf("panel %d %q: without id, title or target, or the id of %q", p.ID, p.Title, other)
		}
		seen[p.ID] = p.Title
		for _, target := range p.Targets {
			all = append(all, given.Replace(target.Expr))
		}
	}
	if d.UID == "" || len(all) < 10 || len(d.Templating.List) != 3 {
		t.Errorf("dashboard %q has %d expressions and %d variables", d.UID, len(all), len(d.Templating.List))
	}
	return all
}

// promtool runs Prometheus' own judge in a directory.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	path := filepath.Join(root, "bin", "tools", "promtool")
	if _, err := os.Stat(path); err != nil {
		if path, err = exec.LookPath("promtool"); err != nil {
			t.Fatal("there is no promtool: run scripts/deps test, which takes it out of Debian's package, or install Prometheus")
		}
	}
	cmd := exec.Command(path, args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// TestAlerts: the rules are right by Prometheus' word, fire when they should
// and not before, and the dashboard asks for what Prometheus understands.
func TestAlerts(t *testing.T) {
	if testing.Short() {
		t.Skip("needs promtool")
	}
	promtool(t, "check", "rules", filepath.Join(root, alerts))
	promtool(t, "test", "rules", filepath.Join(root, alertTests))

	var b strings.Builder
	b.WriteString("groups:\n- name: dashboard\n  rules:\n")
	for i, expr := range expressions(t, readFile(t, dashboard)) {
		fmt.Fprintf(&b, "  - record: panel:%d\n    expr: %q\n", i, expr)
	}
	rules := filepath.Join(t.TempDir(), "dashboard.yaml")
	if err := os.WriteFile(rules, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "rules", rules)
}

// TestAlertsSayWhatToDo: each has a severity, a summary and a description, and
// one is tested or is on the list of those that promtool's tests leave out.
func TestAlertsSayWhatToDo(t *testing.T) {
	text, tests := readFile(t, alerts), readFile(t, alertTests)
	rules := strings.Split(text, "- alert: ")[1:]
	if len(rules) < 10 {
		t.Fatalf("%d rules found", len(rules))
	}
	simple := []string{"TenureRefused", "TenureDelsWait", "TenureEtcdEndpointDown", "TenureTokenDrops"}
	for _, rule := range rules {
		name, _, _ := strings.Cut(rule, "\n")
		for _, part := range []string{"expr: ", "severity: ", "summary: ", "description: "} {
			if strings.Count(rule, part) != 1 {
				t.Errorf("%s has %q %d times", name, part, strings.Count(rule, part))
			}
		}
		if !strings.Contains(tests, "alertname: "+name) && !slices.Contains(simple, name) {
			t.Errorf("%s has no test in %s", name, alertTests)
		}
	}
}

// events are the values of the key "event" in log lines.
func events(c *code) (names []string, unknown []finding) {
	c.calls(func(call *ast.CallExpr) {
		for i, arg := range call.Args {
			if key, ok := c.text(arg); !ok || key != "event" || i+1 == len(call.Args) {
				continue
			}
			if text, known := c.text(call.Args[i+1]); known {
				names = append(names, text)
			} else {
				unknown = append(unknown, c.at(call, "an event that is not a constant"))
			}
		}
	})
	return names, unknown
}

func TestEveryEventIsListed(t *testing.T) {
	w := load(t)
	seen := map[string]bool{}
	for _, p := range w.product() {
		names, unknown := events(w.check(t, p))
		report(t, "an event is a name that people search for: it stands in the source as it stands in the log", unknown)
		for _, name := range names {
			seen[name] = true
		}
	}
	for _, name := range []string{"pod-stranded", "collected", "on-stranded"} {
		if !seen[name] {
			t.Errorf("%s is not among the events found in the sources: the check looks in the wrong place", name)
		}
	}
	page := readFile(t, seeing)
	for _, name := range slices.Sorted(maps.Keys(seen)) {
		if !strings.Contains(page, "`"+name+"`") {
			t.Errorf("%s does not name the event `%s`", seeing, name)
		}
	}
	names, unknown := events(w.snippet(t, `package p
import "log/slog"
func f(log *slog.Logger, dynamic string) {
	log.Info("x", "event", "one")
	log.With("event", "two", "a", 1).Warn("event")
	log.Info("x", "event", dynamic)
}`))
	if got, want := fmt.Sprint(names), "[one two]"; got != want {
		t.Errorf("events: %s, want %s", got, want)
	}
	mustFind(t, unknown, "an event that is not a constant")
}
