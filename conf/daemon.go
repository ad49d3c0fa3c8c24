package conf

import (
	"log/slog"
	"net/netip"
	"time"

	"github.com/spf13/pflag"
)

// Daemon is everything that tenured is told by its flags, its environment and
// its file. Load makes one.
type Daemon struct {
	// ShowVersion asks for the version; nothing else is set or checked then.
	ShowVersion bool
	// Name is the first part of device and chain names, 1 to 6 bytes, not ending in 6.
	Name string
	// NodeName is the node's name in its record.
	NodeName string
	// Ifaces are names or shell patterns of the underlay interface, the first
	// match wins; empty takes the one that has PublicIP or routes to etcd.
	Ifaces []string
	// PublicIP and PublicIP6 are the addresses to announce, one of each family;
	// the zero Addr takes the interface's. With Ifaces they need not be on this
	// machine (1:1 NAT).
	PublicIP, PublicIP6 netip.Addr

	Etcd Etcd
	// EtcdEmbedded runs an etcd server inside, on the URL EtcdEmbeddedListen. With
	// https it shows Etcd.CertFile, and where there is an Etcd.CAFile it wants a
	// certificate of that authority from each client.
	EtcdEmbedded       bool
	EtcdEmbeddedListen string

	// NewCluster births the cluster with NetworkConfig: valid JSON as it was
	// given, so that what was left to a default stays so; nil without.
	NewCluster    bool
	NetworkConfig []byte

	// RunDir, StateDir, Socket and SubnetFile are absolute, clean paths.
	RunDir     string
	StateDir   string
	Socket     string
	SubnetFile string
	// CNIConfFile is such a path too, or "" to write no conflist.
	CNIConfFile string

	// OnStranded is the path of an executable file that is run once for each
	// stranded pod, or "".
	OnStranded string

	IPMasq          bool
	MasqRandomFully bool
	ForwardAccept   bool
	// ClampMSS keeps TCP's segments as small as the way of each connection takes.
	ClampMSS bool
	// TxChecksum leaves checksums of what the overlay sends to the hardware.
	TxChecksum bool
	// AddressCooldown is how long a freed address rests; not negative.
	AddressCooldown time.Duration
	// Exclude are prefixes whose addresses no pod gets, without host bits.
	Exclude []netip.Prefix

	// MetricsListen is host:port, or "" for no listener.
	MetricsListen string
	LogLevel      slog.Level
	// LogFormat is "text" or "json".
	LogFormat string

	// Warnings are for the log: nothing is wrong, but something is unused.
	Warnings []string
}

// daemonForm is a Daemon while its settings are text.
type daemonForm struct {
	Daemon
	configFile    string
	publicIPs     []string
	networkConfig string
	exclude       []string
	logLevel      string
}

// Flags are the flags of tenured, for what describes them; nothing reads them.
func Flags() *pflag.FlagSet { return new(daemonForm).flagSet() }

// flagSet defines every flag of tenured with its default, in the order in
// which help lists them.
func (f *daemonForm) flagSet() *pflag.FlagSet {
	fs := pflag.NewFlagSet("tenured", pflag.ContinueOnError)
	fs.SortFlags = false
	fs.StringVar(&f.configFile, "config", "", "strict YAML `file` with settings named as these flags")
	fs.StringVar(&f.Name, "name", "tenure", "first part of device and chain `name`s, 6 bytes at most and no 6 at the end; two instances need two")
	fs.StringVar(&f.NodeName, "node-name", "", "this node's `name` in the cluster (default the host name)")
	fs.StringSliceVar(&f.Ifaces, "iface", nil, "underlay interface by `NAME|PATTERN,...`, a shell pattern; the first match wins (default the one that routes to etcd)")
	fs.StringSliceVar(&f.publicIPs, "public-ip", nil, "`address` this node announces, or one of each family with a comma; one that is not on it (1:1 NAT) needs --iface too")
	f.Etcd.AddFlags(fs)
	fs.BoolVar(&f.EtcdEmbedded, "etcd-embedded", false, "run one etcd server inside this process, for trying out, one machine, or a small cluster")
	fs.StringVar(&f.EtcdEmbeddedListen, "etcd-embedded-listen", DefaultEtcdEndpoint, "client `URL` of the embedded etcd; with https it shows --etcd-certfile, and with --etcd-cafile it wants a certificate of its clients")
	fs.BoolVar(&f.NewCluster, "new-cluster", false, "birth the cluster from --network-config if there is none, else change nothing")
	fs.StringVar(&f.networkConfig, "network-config", "", "network config for --new-cluster, as `JSON` or @FILE")
	fs.StringVar(&f.RunDir, "run-dir", "/run/tenure", "`directory` of what must not outlive a boot")
	fs.StringVar(&f.StateDir, "state-dir", "/var/lib/tenure", "`directory` of the node's identity")
	fs.StringVar(&f.Socket, "socket", "", "unix socket `path` (default <run-dir>/tenured.sock)")
	fs.StringVar(&f.SubnetFile, "subnet-file", "", "`file` for the FLANNEL_… variables (default <run-dir>/subnet.env)")
	fs.StringVar(&f.CNIConfFile, "cni-conf-file", "", "`file` to write the CNI conflist to after the first lease; empty writes none")
	fs.StringVar(&f.OnStranded, "on-stranded", "", "executable `file` to run once for each pod that a lost subnet strands; empty runs nothing")
	fs.BoolVar(&f.IPMasq, "ip-masq", true, "masquerade what pods send out of the pod network")
	fs.BoolVar(&f.MasqRandomFully, "masq-random-fully", true, "masquerade with fully random source ports")
	fs.BoolVar(&f.ForwardAccept, "forward-accept", true, "accept forwarded pod traffic even where the FORWARD policy is DROP")
	fs.BoolVar(&f.ClampMSS, "clamp-mss", false, "keep the segments of pods' TCP as small as their way takes, for ways that drop the ICMP which would say so")
	fs.BoolVar(&f.TxChecksum, "tx-checksum", false, "leave the checksums of what the overlay sends to the network card; wrong ones were seen of some")
	fs.DurationVar(&f.AddressCooldown, "address-cooldown", time.Minute, "`time` a freed pod address rests before it is given out again")
	fs.StringSliceVar(&f.exclude, "exclude", nil, "`CIDR,...` whose addresses no pod gets")
	fs.StringVar(&f.MetricsListen, "metrics-listen", "127.0.0.1:9475", "`address` for metrics and health; empty is off")
	fs.StringVar(&f.logLevel, "log-level", "info", "least `level` to log: debug, info, warn or error")
	fs.StringVar(&f.LogFormat, "log-format", "text", "log `format`: text or json")
	fs.BoolVar(&f.ShowVersion, "version", false, "print the version and exit")
	return fs
}
