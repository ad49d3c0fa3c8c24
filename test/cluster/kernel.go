package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tenure-cni/tenure/test/lab"
)

// Overlay and Bridge are the names of the devices of a node.
const (
	Overlay = "tenure.1"
	Bridge  = "tenure0"
)

// BridgeNetfilter makes the node's bridges show what they pass on to iptables,
// or not.
func BridgeNetfilter(t testing.TB, n *lab.Node, on bool) {
	t.Helper()
	value := "0"
	if on {
		value = "1"
	}
	err := n.Do(func() error {
		return os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-iptables", []byte(value), 0)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// ourProtocol is the number in our routes.
const ourProtocol = "90"

// Link is a device as the kernel shows it.
type Link struct {
	MAC string `json:"address"`
	MTU int    `json:"mtu"`
	// Addrs are its IPv4 addresses with their lengths.
	Addrs []string `json:"-"`
}

// FindLink returns a device, or an error while there is none.
func FindLink(ctx context.Context, n lab.Execer, name string) (Link, error) {
	out, err := n.Exec(ctx, "ip", "-j", "-4", "addr", "show", "dev", name)
	if err != nil {
		return Link{}, err
	}
	var addrs []struct {
		Info []struct {
			Local     string `json:"local"`
			PrefixLen int    `json:"prefixlen"`
		} `json:"addr_info"`
	}
	if err := decode(out, &addrs); err != nil {
		return Link{}, err
	}
	out, err = n.Exec(ctx, "ip", "-j", "link", "show", "dev", name)
	if err != nil {
		return Link{}, err
	}
	var links []Link
	if err := decode(out, &links); err != nil {
		return Link{}, err
	}
	if len(links) != 1 {
		return Link{}, fmt.Errorf("%d links called %s", len(links), name)
	}
	link := links[0]
	for _, a := range addrs {
		for _, i := range a.Info {
			link.Addrs = append(link.Addrs, fmt.Sprintf("%s/%d", i.Local, i.PrefixLen))
		}
	}
	slices.Sort(link.Addrs)
	return link, nil
}

// Peers are a node's kernel tables for its peers, one line an entry, sorted.
type Peers struct {
	// Routes are "subnet via gateway", Neighs "gateway MAC", FDB "MAC address".
	Routes, Neighs, FDB []string
}

// WantPeers is how the tables should be for these peers.
func WantPeers(peers ...Peer) Peers {
	var want Peers
	for _, p := range peers {
		base := p.Subnet.Addr().String()
		want.Routes = append(want.Routes, p.Subnet.String()+" via "+base)
		want.Neighs = append(want.Neighs, base+" "+p.MAC)
		want.FDB = append(want.FDB, p.MAC+" "+p.PublicIP.String())
	}
	return want.sorted()
}

func (p Peers) sorted() Peers {
	for _, table := range [][]string{p.Routes, p.Neighs, p.FDB} {
		slices.Sort(table)
	}
	return p
}

// Equal compares two sets of tables.
func (p Peers) Equal(o Peers) bool {
	return slices.Equal(p.Routes, o.Routes) && slices.Equal(p.Neighs, o.Neighs) && slices.Equal(p.FDB, o.FDB)
}

// KernelPeers reads the tables: of the routes those with our protocol number,
// of neighbours and forwarding entries all that are permanent.
func KernelPeers(ctx context.Context, n lab.Execer) (Peers, error) {
	var got Peers
	var routes, neighs, fdb []struct {
		Dst     string `json:"dst"`
		Gateway string `json:"gateway"`
		Lladdr  string `json:"lladdr"`
		MAC     string `json:"mac"`
	}
	for _, table := range []struct {
		into any
		argv string
	}{
		{&routes, "ip -j route show dev " + Overlay + " proto " + ourProtocol},
		{&neighs, "ip -j neigh show dev " + Overlay + " nud permanent"},
		{&fdb, "bridge -j fdb show dev " + Overlay},
	} {
		argv := strings.Fields(table.argv)
		out, err := n.Exec(ctx, argv[0], argv[1:]...)
		if err == nil {
			err = decode(out, table.into)
		}
		if err != nil {
			return Peers{}, err
		}
	}
	for _, r := range routes {
		got.Routes = append(got.Routes, r.Dst+" via "+r.Gateway)
	}
	for _, e := range neighs {
		got.Neighs = append(got.Neighs, e.Dst+" "+e.Lladdr)
	}
	for _, f := range fdb {
		got.FDB = append(got.FDB, f.MAC+" "+f.Dst)
	}
	return got.sorted(), nil
}

// decode reads what ip -j prints, which is nothing for an empty list.
func decode(out string, v any) error {
	if strings.TrimSpace(out) == "" {
		return nil
	}
	if err := json.Unmarshal([]byte(out), v); err != nil {
		return fmt.Errorf("decode %q: %w", out, err)
	}
	return nil
}

// Picture is everything of the node's kernel that Tenure makes: links with
// their addresses, routes, rules, forwarding entries and neighbours.
func Picture(ctx context.Context, t testing.TB, n lab.Execer) string {
	t.Helper()
	var b strings.Builder
	for _, argv := range []string{
		"ip -o link", "ip -4 addr show scope global", "ip -4 route", "iptables-save",
		"ip neigh show dev " + Overlay + " nud permanent", "bridge fdb show dev " + Overlay,
		"tc filter show dev " + Overlay + " ingress", "tc filter show dev " + Overlay + " egress",
	} {
		words := strings.Fields(argv)
		for line := range strings.Lines(Exec(ctx, t, n, words[0], words[1:]...)) {
			switch {
			case strings.HasPrefix(line, "#"): // iptables-save writes the time
			case strings.HasPrefix(line, ":"): // and counts packets
				line, _, _ = strings.Cut(line, " [")
				b.WriteString(line + "\n")
			default:
				b.WriteString(line)
			}
		}
	}
	return b.String()
}
