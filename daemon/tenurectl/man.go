package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenure-cni/tenure/conf"
)

// newMan writes manual pages, for "make man" and packages: one for tenured, and
// one for tenurectl with all commands. They say what --help says, so nothing is
// written twice.
func newMan() *cobra.Command {
	return &cobra.Command{
		Use: "man DIRECTORY", Short: "write the manual pages into a directory", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			for name, page := range map[string]string{"tenured.8": tenuredPage(), "tenurectl.8": tenurectlPage(cmd.Root())} {
				if err := os.WriteFile(filepath.Join(args[0], name), []byte(page), 0o644); err != nil {
					return failed(exitStands, "write manual page: %v", err)
				}
			}
			return nil
		},
	}
}

// manual is a page in man's own language while it is written.
type manual struct{ strings.Builder }

func newManual(name, what string) *manual {
	m := &manual{}
	m.line(`.TH %s 8 "" "Tenure %s" "Tenure"`, strings.ToUpper(name), version)
	m.line(".SH NAME")
	m.line(`%s \- %s`, name, escape(what))
	return m
}

func (m *manual) line(format string, args ...any) { _, _ = fmt.Fprintf(m, format+"\n", args...) }

func (m *manual) section(title, text string) {
	m.line(".SH %s", title)
	m.text(text)
}

// text is paragraphs; lines that are set in are left as they are.
func (m *manual) text(text string) {
	for paragraph := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		if strings.HasPrefix(paragraph, " ") || strings.HasPrefix(paragraph, "\t") {
			m.line(".PP\n.nf\n%s\n.fi", escape(paragraph))
			continue
		}
		m.line(".PP\n%s", escape(paragraph))
	}
}

// flags lists a set, each with its type, default and what it is for.
func (m *manual) flags(fs *pflag.FlagSet) {
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		kind, usage := pflag.UnquoteUsage(f)
		names := `\fB\-\-` + escape(f.Name) + `\fR`
		if f.Shorthand != "" {
			names = `\fB\-` + f.Shorthand + `\fR, ` + names
		}
		if kind != "" {
			names += ` \fI` + escape(kind) + `\fR`
		}
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "[]" {
			usage += " (default " + f.DefValue + ")"
		}
		m.line(".TP\n%s\n%s", names, escape(usage))
	})
}

// escape keeps man from taking text for its own: a backslash, a dash that is to
// stay one, a dot or quote at the beginning of a line, and what is no ASCII.
func escape(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			lines[i] = `\&` + l
		}
	}
	var b strings.Builder
	for _, r := range strings.Join(lines, "\n") {
		if r < utf8.RuneSelf {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, `\[u%04X]`, r)
		}
	}
	return b.String()
}

func tenuredPage() string {
	m := newManual("tenured", "node daemon of a Tenure network")
	m.section("SYNOPSIS", "tenured [--config FILE] [flags]")
	m.section("DESCRIPTION", `tenured leases this node's pod subnet from etcd, proves the lease, and closes the overlay in the kernel before the lease can end. It gives addresses to pods and keeps bridge, vxlan device, peers, routes and rules.

Every flag can be set as TENURED_... in the environment (TENURED_ETCD_PREFIX) or by its name in the strict YAML file of --config. Flag beats environment beats file.`)
	m.line(".SH OPTIONS")
	m.flags(conf.Flags())
	m.section("EXIT STATUS", "0 after SIGTERM or SIGINT; 2 for a bad flag, environment, file or network config; 1 for what no retry can cure, such as a second instance on one directory.")
	m.section("SEE ALSO", "tenurectl(8)")
	return m.String()
}

func tenurectlPage(root *cobra.Command) string {
	m := newManual("tenurectl", root.Short)
	m.section("SYNOPSIS", "tenurectl COMMAND [flags]")
	m.section("DESCRIPTION", root.Long)
	m.line(".SH OPTIONS")
	m.flags(root.PersistentFlags())
	m.line(".SH COMMANDS")
	for _, c := range root.Commands() {
		m.command(c)
	}
	m.section("EXIT STATUS", "0 healthy, warnings allowed; 1 reached, and an error stands; 2 usage; 3 the node or etcd was not reached.")
	m.section("SEE ALSO", "tenured(8)")
	return m.String()
}

// command is a section of its own for a command, and for each below it.
func (m *manual) command(c *cobra.Command) {
	// What is long to say of completion is cobra's, and "completion --help" says it.
	if c.Hidden || !c.IsAvailableCommand() || c.Name() == "completion" {
		return
	}
	m.line(".SS %s", escape(c.UseLine()))
	text := c.Long
	if text == "" {
		text = c.Short
	}
	m.text(text)
	if c.Example != "" {
		m.line(".PP\n.nf\n%s\n.fi", escape(strings.TrimRight(c.Example, "\n")))
	}
	m.flags(c.LocalNonPersistentFlags())
	for _, below := range c.Commands() {
		m.command(below)
	}
}
