package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tenure-cni/tenure/test/netnstest"

	"github.com/tenure-cni/tenure/daemon/cnidir"
)

// TestObserveRealHost looks at a real namespace: everything that is tried
// succeeds, and afterwards there is not a trace of it.
func TestObserveRealHost(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ns := netnstest.New(t)
	in := func(command string) (out string) {
		t.Helper()
		if err := ns.Do(func() error {
			b, err := exec.CommandContext(ctx, "sh", "-ec", command).CombinedOutput()
			out = string(b)
			return err
		}); err != nil {
			t.Fatalf("%s: %v: %s", command, err, out)
		}
		return out
	}
	in(`ip link add eth7 type veth peer name eth8 && ip link set eth7 up mtu 1400 && ip link set eth8 up && ip addr add 192.0.2.9/24 dev eth7 &&
		ip route add default via 192.0.2.1 && ip link add flannel.3 type vxlan id 3 dstport 8472 && ip link set eth8 alias "` + alias("tenure", "c1") + `"`)
	in(`ip addr add 2001:db8::9/64 dev eth7 nodad && ip addr add 2001:db8::a/64 dev eth7 nodad preferred_lft 0`)
	picture := func() string { return in("ip -o link; ip addr; ip rule; ip route show table all; iptables-save") }
	dir := t.TempDir()
	write(t, filepath.Join(dir, "ledger.json"), `{"version":1,"allocations":[{"containerID":"c1","host":"eth8","addresses":["10.5.34.9/24"]}]}`)
	write(t, filepath.Join(dir, "subnet.env"), "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.34.1/24\nFLANNEL_IPV6_NETWORK=fd00:5::/48\nFLANNEL_IPV6_SUBNET=fd00:5:0:22::1/64\nFLANNEL_MTU=1350\n")
	before := picture()

	var f Facts
	if err := ns.Do(func() error {
		f = Observe(ctx, Options{Instance: "tenure", Socket: filepath.Join(dir, "none.sock"), RunDir: dir, StateDir: filepath.Join(dir, "not", "yet"), ConfDir: dir, BinDir: dir})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, picture()); diff != "" {
		t.Errorf("the namespace has changed (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(&Trials{}, f.Trials); diff != "" {
		t.Errorf("what was tried (-want +got):\n%s", diff)
	}
	if f.Underlay != "eth7" || f.Links["eth7"].MTU != 1400 || f.Links["flannel.3"].VNI != 3 || f.Links["eth8"].Alias == "" ||
		!seesAddresses(f.Links["eth7"]) {
		t.Errorf("underlay %s, links %+v", f.Underlay, f.Links)
	}
	want := []Recorded{{"c1", "eth8", prefixes("10.5.34.9/24")}}
	if len(f.Ledger) != 1 || f.Ledger[0].Host != want[0].Host || !slices.Equal(f.Ledger[0].Addresses, want[0].Addresses) || f.LedgerErr != "" {
		t.Errorf("ledger %+v, %s", f.Ledger, f.LedgerErr)
	}
	if f.Announced != prefix("10.5.34.1/24") || f.Network != prefix("10.5.0.0/16") || f.Announced6 != prefix("fd00:5:0:22::1/64") || f.Network6 != prefix("fd00:5::/48") {
		t.Errorf("subnet.env says %s in %s, and %s in %s", f.Announced, f.Network, f.Announced6, f.Network6)
	}
	if f.Sysctls[ipForward] != "0" || f.Sysctls[confOf("flannel.3", "rp_filter")] == "" || f.Kernel == "" || f.Clock.Err != "" || !f.Root {
		t.Errorf("facts %+v", f)
	}
	if !f.Run.There || f.State.There || f.State.Free == 0 || f.SocketThere || f.Status != nil || f.StatusErr == "" {
		t.Errorf("run %+v, state %+v, socket %t", f.Run, f.State, f.SocketThere)
	}
}

// seesAddresses says whether a link is seen with the addresses of both families
// that it was given, and with what is wrong with one of them.
func seesAddresses(l Link) bool {
	for _, want := range []string{"192.0.2.9/24", "2001:db8::9/64", "2001:db8::a/64"} {
		if !slices.Contains(l.Addrs, prefix(want)) {
			return false
		}
	}
	return l.Unfit[netip.MustParseAddr("2001:db8::a")] == "deprecated" && l.Unfit[netip.MustParseAddr("2001:db8::9")] == "" && l.Unfit[netip.MustParseAddr("192.0.2.9")] == ""
}

// TestDefaultWay: a host of IPv6 alone has an underlay too.
func TestDefaultWay(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root")
	}
	for want, line := range map[string]string{"": "", "d0": "ip -6 route add default dev d0", "d1": "ip -6 route add default dev d0; ip route add default dev d1"} {
		ns := netnstest.New(t)
		var f Facts
		if err := ns.Do(func() error {
			out, err := exec.CommandContext(t.Context(), "sh", "-ec", "ip link add d0 type veth peer name d1; ip link set d0 up; ip link set d1 up; "+line).CombinedOutput()
			f.observeLinks()
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if f.Underlay != want {
			t.Errorf("with %q the underlay is %q, want %q", line, f.Underlay, want)
		}
	}
}

// TestObserveKubeProxy finds the chain of kube-proxy, and not the lack of it.
func TestObserveKubeProxy(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root")
	}
	ns := netnstest.New(t)
	for _, want := range []bool{false, true} {
		var got bool
		if err := ns.Do(func() error {
			got = kubeProxy(t.Context(), "iptables")
			return exec.CommandContext(t.Context(), "iptables", "-t", "nat", "-N", "KUBE-SERVICES").Run()
		}); err != nil && !want {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("kube-proxy is there: %t, want %t", got, want)
		}
	}
}

func TestObserveCNI(t *testing.T) {
	conf, bin := t.TempDir(), t.TempDir()
	write(t, filepath.Join(conf, "20-b.conflist"), `{"name":"tenure","plugins":[{"type":"tenure","tenure":{"socket":"/s"}},{"type":"portmap"}]}`)
	write(t, filepath.Join(conf, "10-a.conf"), `{"name":"a","type":"bridge","ipam":{"type":"tenure-ipam","tenure":{"socket":"/t"}}}`)
	write(t, filepath.Join(conf, "30-c.json"), `{`)
	write(t, filepath.Join(conf, "05-old.conflist.bak"), `{}`)
	write(t, filepath.Join(bin, "portmap"), "")
	write(t, filepath.Join(bin, "tenure"), "")
	if err := os.Chmod(filepath.Join(bin, "tenure"), 0o755); err != nil {
		t.Fatal(err)
	}
	got := observeCNI(conf, bin)
	if len(got.Files) != 3 || got.Files[2].Err == "" {
		t.Fatalf("files %+v", got.Files)
	}
	want := []cnidir.File{
		{Name: "10-a.conf", Network: "a", Types: []string{"bridge"}, IPAM: "tenure-ipam", Socket: "/t"},
		{Name: "20-b.conflist", Network: "tenure", Types: []string{"tenure", "portmap"}, Socket: "/s"},
	}
	if diff := cmp.Diff(want, got.Files[:2]); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if !got.Files[0].Ours() || !got.Files[1].Ours() || got.Files[2].Ours() {
		t.Errorf("which are ours: %+v", got.Files)
	}
	if diff := cmp.Diff(map[string]bool{"tenure": true}, got.Programs); diff != "" {
		t.Errorf("programs (-want +got):\n%s", diff)
	}
	if none := observeCNI(filepath.Join(conf, "none"), bin); none.ConfErr != "" || len(none.Files) != 0 {
		t.Errorf("without a directory: %+v", none)
	}
}

func TestDirectory(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "file"), "")
	if d := directory(filepath.Join(dir, "file", "run")); d.Err == "" {
		t.Errorf("below a file: %+v", d)
	}
	if d := directory("/dev/shm"); !d.There || !d.Volatile {
		t.Errorf("/dev/shm: %+v", d)
	}
	if d := directory("/sys/kernel"); d.Volatile {
		t.Errorf("/sys/kernel: %+v", d)
	}
}

func TestManagerOf(t *testing.T) {
	run := t.TempDir()
	write(t, filepath.Join(run, "NetworkManager/devices/7"), "[device]\nmanaged=true\n")
	write(t, filepath.Join(run, "NetworkManager/devices/8"), "[device]\nmanaged=false\n")
	write(t, filepath.Join(run, "systemd/netif/links/9"), "ADMIN_STATE=configured\nNETWORK_FILE=/etc/systemd/network/all.network\n")
	write(t, filepath.Join(run, "systemd/netif/links/10"), "ADMIN_STATE=unmanaged\n")
	for index, want := range map[int]string{7: networkManager, 8: "", 9: networkd, 10: "", 11: ""} {
		if got := managerOf(run, index); got != want {
			t.Errorf("device %d is managed by %q, want %q", index, got, want)
		}
	}
}

func prefixes(s string) []netip.Prefix { return []netip.Prefix{prefix(s)} }

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
