package conf

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// DefaultEtcdPrefix is the key prefix of a Tenure cluster.
const DefaultEtcdPrefix = "/tenure/network"

// DefaultEtcdEndpoint is the etcd that is called unless told otherwise.
const DefaultEtcdEndpoint = "http://127.0.0.1:2379"

// Etcd says how to reach the store. tenured and tenurectl share these flags.
type Etcd struct {
	// Endpoints are http or https URLs with host and port, without a path.
	Endpoints []string
	// Prefix is absolute and clean, such as DefaultEtcdPrefix.
	Prefix string
	// CAFile, CertFile and KeyFile are PEM files; "" is not used.
	CAFile   string
	CertFile string
	KeyFile  string
	// Username and PasswordFile are both set or both "".
	Username     string
	PasswordFile string
}

// AddFlags defines the etcd flags on fs; their values go to e once fs is parsed.
func (e *Etcd) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&e.Endpoints, "etcd-endpoints", []string{DefaultEtcdEndpoint}, "etcd's client endpoints, as `URL,...`")
	fs.StringVar(&e.Prefix, "etcd-prefix", DefaultEtcdPrefix, "key `prefix` of this cluster; /coreos.com/network joins a flannel cluster")
	fs.StringVar(&e.CAFile, "etcd-cafile", "", "PEM `file` of the authority that signed etcd's certificate")
	fs.StringVar(&e.CertFile, "etcd-certfile", "", "PEM `file` of the client certificate shown to etcd")
	fs.StringVar(&e.KeyFile, "etcd-keyfile", "", "PEM `file` of the client certificate's key")
	fs.StringVar(&e.Username, "etcd-username", "", "etcd user `name`")
	fs.StringVar(&e.PasswordFile, "etcd-password-file", "", "`file` that holds the etcd user's password")
}

// Check names every fault; its Field is the flag's name without dashes.
func (e Etcd) Check() Faults {
	var faults Faults
	if len(e.Endpoints) == 0 {
		faults.add("etcd-endpoints", "at least one URL is needed")
	}
	for i, endpoint := range e.Endpoints {
		if slices.Contains(e.Endpoints[:i], endpoint) {
			faults.add("etcd-endpoints", "%s is given twice", endpoint)
		}
		if err := checkURL(endpoint, "http", "https"); err != nil {
			faults.add("etcd-endpoints", "%v", err)
		}
	}
	if !path.IsAbs(e.Prefix) || path.Clean(e.Prefix) != e.Prefix || e.Prefix == "/" {
		faults.add("etcd-prefix", "%q is not an absolute path without a final slash, such as %s", e.Prefix, DefaultEtcdPrefix)
	}
	for _, f := range []struct{ field, file string }{
		{"etcd-cafile", e.CAFile}, {"etcd-certfile", e.CertFile}, {"etcd-keyfile", e.KeyFile}, {"etcd-password-file", e.PasswordFile},
	} {
		if f.file == "" {
			continue
		}
		if err := readable(f.file); err != nil {
			faults.add(f.field, "%v", err)
		}
	}
	bothOrNone(&faults, "etcd-certfile", e.CertFile, "etcd-keyfile", e.KeyFile)
	bothOrNone(&faults, "etcd-username", e.Username, "etcd-password-file", e.PasswordFile)
	return faults
}

// readable says what keeps a file from being read, by its first byte: it may be
// of any size.
func readable(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if _, err := f.Read(make([]byte, 1)); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// maxPassword bounds the password file, in bytes.
const maxPassword = 64 << 10

// Password reads the password file, without the line end; "" without a file. A
// file of more than 64 KiB is refused: it holds no password.
func (e Etcd) Password() (string, error) {
	if e.PasswordFile == "" {
		return "", nil
	}
	f, err := os.Open(e.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("read etcd password: %w", err)
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxPassword+1))
	if err != nil {
		return "", fmt.Errorf("read etcd password: %w", err)
	}
	if len(b) > maxPassword {
		return "", fmt.Errorf("read etcd password: %s has more than %d bytes; name the file that holds the password alone", e.PasswordFile, maxPassword)
	}
	return strings.TrimRight(string(b), "\r\n"), nil
}

func bothOrNone(faults *Faults, field1, value1, field2, value2 string) {
	if value1 != "" && value2 == "" {
		faults.add(field1, "needs --%s too", field2)
	}
	if value2 != "" && value1 == "" {
		faults.add(field2, "needs --%s too", field1)
	}
}

// checkURL takes scheme://host:port with nothing behind it.
func checkURL(text string, schemes ...string) error {
	u, err := url.Parse(text)
	if err != nil || !slices.Contains(schemes, u.Scheme) {
		return fmt.Errorf("%q is not in the form %s://host:port", text, strings.Join(schemes, ":// or "))
	}
	if u.User != nil || strings.TrimSuffix(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return fmt.Errorf("%q has more than a host and a port", u.Redacted())
	}
	host, port, err := net.SplitHostPort(u.Host)
	if err != nil || host == "" {
		return fmt.Errorf("%q lacks a host or a port", text)
	}
	return checkPort(text, port, 1)
}

// checkListen takes host:port, where no host means every address and port 0
// one that the kernel chooses.
func checkListen(text string) error {
	_, port, err := net.SplitHostPort(text)
	if err != nil {
		return fmt.Errorf("%q is not in the form host:port", text)
	}
	return checkPort(text, port, 0)
}

func checkPort(text, port string, least int) error {
	if n, err := strconv.Atoi(port); err != nil || n < least || n > maxPort {
		return fmt.Errorf("%q: port %q is not within %d to %d", text, port, least, maxPort)
	}
	return nil
}
