package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"
)

// forms is the flag -o of a cluster verb.
type forms struct {
	form string
	may  []string
}

// newForms gives the command its -o; the first form is the default.
func newForms(cmd *cobra.Command, may ...string) *forms {
	f := &forms{may: may}
	cmd.Flags().StringVarP(&f.form, "output", "o", may[0], "`form`: "+strings.Join(may, ", "))
	// It fails only for a flag that does not exist.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(may, cobra.ShellCompDirectiveNoFileComp))
	return f
}

func (f *forms) check() error {
	if !slices.Contains(f.may, f.form) {
		return failed(exitUsage, "--output %q is none of %s", f.form, strings.Join(f.may, ", "))
	}
	return nil
}

// table says that a person reads it.
func (f *forms) table() bool { return f.form == "table" || f.form == "wide" }

func (f *forms) wide() bool { return f.form == "wide" }

// show prints v as json or yaml, or else by table.
func (f *forms) show(w io.Writer, v any, table func(io.Writer) error) error {
	var err error
	switch f.form {
	case "json":
		err = printJSON(w, v)
	case "yaml":
		err = printYAML(w, v)
	default:
		err = table(w)
	}
	if err != nil {
		return failed(exitStands, "print: %w", err)
	}
	return nil
}

func printYAML(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err == nil {
		b, err = yaml.JSONToYAML(b)
	}
	if err == nil {
		_, err = w.Write(b)
	}
	return err
}

// rows prints aligned columns.
func rows(out io.Writer, print func(line func(cells ...string))) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	print(func(cells ...string) { _, _ = fmt.Fprintln(w, strings.Join(cells, "\t")) })
	return w.Flush()
}

// coloured says that what is written to w may have colour.
func coloured(w io.Writer) bool {
	f, isFile := w.(*os.File)
	if !isFile || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	return terminal(f)
}

func terminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// secs is a time of whole seconds for a person; nil is not known.
func secs(s *int64) string {
	if s == nil {
		return "?"
	}
	return (time.Duration(*s) * time.Second).String()
}

func when(t time.Time) string {
	if t.IsZero() {
		return "?"
	}
	return t.UTC().Format(time.RFC3339)
}
