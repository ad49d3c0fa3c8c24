package conf

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	yamlv2 "go.yaml.in/yaml/v2"
	"sigs.k8s.io/yaml"
)

// EnvPrefix begins the environment variable of every flag: TENURED_NODE_NAME
// is --node-name.
const EnvPrefix = "TENURED_"

// Load reads tenured's settings: a flag wins over the environment, that over
// the file named by --config, that over the default. args are without the
// program's name, environ is as os.Environ gives it; with --help the usage goes
// to out and the error is pflag.ErrHelp. Any other error is of type Faults and
// names every fault at once, each with its source. Load reads files; it writes
// nothing and contacts nobody.
func Load(args, environ []string, out io.Writer) (Daemon, error) {
	var form daemonForm
	l := loader{fs: form.flagSet(), from: map[string]string{}, refused: map[string]bool{}}
	l.fs.Usage = func() { writeUsage(out, l.fs) }
	if err := l.readFlags(args); err != nil {
		return Daemon{}, err
	}
	if form.ShowVersion && len(l.faults) == 0 {
		return Daemon{ShowVersion: true}, nil
	}
	l.readEnvironment(environ)
	if form.configFile != "" {
		l.readFile(form.configFile)
	}
	form.finish(&l)
	if err := l.faults.Err(); err != nil {
		return Daemon{}, err
	}
	form.Warnings = append(form.Warnings, l.warnings...)
	return form.Daemon, nil
}

// loader fills a flag set from the strongest source to the weakest: what is
// set stays.
type loader struct {
	fs *pflag.FlagSet
	// from names the source of each flag that one was found for.
	from map[string]string
	// refused are the flags whose text was not even of the flag's type.
	refused  map[string]bool
	faults   Faults
	warnings []string
}

// source names where a flag's value comes from, or would be given.
func (l *loader) source(name string) string {
	if s, ok := l.from[name]; ok {
		return s
	}
	return "flag --" + name
}

// fault notes a fault of a flag's value under its source. What was refused
// already is not judged again by its default.
func (l *loader) fault(name, format string, args ...any) {
	if !l.refused[name] {
		l.faults.add(l.source(name), format, args...)
	}
}

// refuse notes that a flag's text is not of the flag's type.
func (l *loader) refuse(name string, err error) {
	l.fault(name, "%v", err)
	l.refused[name] = true
}

// set gives a flag the text of its strongest source.
func (l *loader) set(flag *pflag.Flag, text string) {
	if err := flag.Value.Set(text); err != nil {
		l.refuse(flag.Name, fmt.Errorf("%q: %w", text, err))
	}
}

// given tells whether any source set the flag.
func (l *loader) given(name string) bool { return l.from[name] != "" }

// readFlags applies the command line; its error is pflag.ErrHelp only.
func (l *loader) readFlags(args []string) error {
	l.fs.ParseErrorsAllowlist.UnknownFlagsHandling = pflag.PassUnknownFlagToArgs
	err := l.fs.ParseAll(args, func(flag *pflag.Flag, value string) error {
		l.from[flag.Name] = "flag --" + flag.Name
		l.set(flag, value)
		return nil
	})
	if errors.Is(err, pflag.ErrHelp) {
		return pflag.ErrHelp
	}
	if err != nil {
		l.faults.add("command line", "%v", err)
	}
	for _, arg := range l.fs.Args() {
		if name, _, _ := strings.Cut(arg, "="); strings.HasPrefix(arg, "-") && arg != "-" {
			l.faults.add("flag "+name, "unknown flag")
		} else {
			l.faults.add("command line", "unexpected argument %q", arg)
		}
	}
	return nil
}

// envName is the environment variable of a flag.
func envName(flag string) string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// readEnvironment applies what no flag has set. A variable that no flag answers
// to is a warning only: Kubernetes sets such ones for a Service of that name.
func (l *loader) readEnvironment(environ []string) {
	values := map[string]string{}
	for _, entry := range environ {
		if name, value, _ := strings.Cut(entry, "="); strings.HasPrefix(name, EnvPrefix) {
			values[name] = value
		}
	}
	l.fs.VisitAll(func(flag *pflag.Flag) {
		name := envName(flag.Name)
		value, ok := values[name]
		delete(values, name)
		if !ok || l.given(flag.Name) || flag.Name == "version" {
			return
		}
		l.from[flag.Name] = "environment " + name
		l.set(flag, value)
	})
	for name := range values {
		l.warnings = append(l.warnings, "environment "+name+" belongs to no flag and is ignored")
	}
	slices.Sort(l.warnings)
}

// readFile applies what neither a flag nor the environment has set.
func (l *loader) readFile(file string) {
	b, err := os.ReadFile(file)
	if err != nil {
		l.fault("config", "%v", err)
		return
	}
	asJSON, err := yaml.YAMLToJSONStrict(b)
	if err != nil {
		l.faults.add("file "+file, "%v", err)
		return
	}
	if err := unread(b, string(asJSON) == "null"); err != nil {
		l.faults.add("file "+file, "%v", err)
		return
	}
	if string(asJSON) == "null" { // an empty file
		return
	}
	members, err := readObject(asJSON)
	if err != nil {
		l.faults.add("file "+file, "want settings in the form \"name: value\"")
		return
	}
	for _, m := range members {
		l.readSetting(file, m)
	}
}

// unread says what of a file the YAML library passes over without a word: what
// follows its first document, also without a mark between them, as after "{}", and
// all of a file that begins with what it takes for an anchor.
func unread(b []byte, none bool) error {
	documents := yamlv2.NewDecoder(bytes.NewReader(b))
	for first := true; ; first = false {
		var one any
		err := documents.Decode(&one)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("not all of it can be read: %w", err)
		}
		if !first && one != nil {
			return errors.New("a second document follows, and one is read")
		}
	}
	if none && !nothing(b) {
		return errors.New("nothing in it can be read")
	}
	return nil
}

// nothing says whether a file is empty, or says so.
func nothing(b []byte) bool {
	for line := range strings.Lines(string(b)) {
		text, _, _ := strings.Cut(line, "#")
		switch strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(text), "---")) {
		case "", "...", "~", "null", "Null", "NULL":
		default:
			if !strings.HasPrefix(text, "%") {
				return false
			}
		}
	}
	return true
}

func (l *loader) readSetting(file string, m member) {
	source := fmt.Sprintf("file %s: %s", file, m.name)
	flag := l.fs.Lookup(m.name)
	if flag == nil || m.name == "config" || m.name == "version" {
		l.faults.add(source, "unknown setting")
		return
	}
	if m.null() || l.given(m.name) {
		return
	}
	l.from[m.name] = source
	if err := setFlag(flag, m.raw); err != nil {
		l.refuse(m.name, err)
	}
}

// writeUsage prints one line for every flag.
func writeUsage(out io.Writer, fs *pflag.FlagSet) {
	_, _ = fmt.Fprintf(out, `tenured keeps this node's pod subnet under a lease in etcd and serves the CNI plugin.

Usage: tenured [flags]

A flag wins over the environment (%s), the environment over the
file of --config, the file over the default.

%s`, envName("flag-name"), fs.FlagUsagesWrapped(0))
}
