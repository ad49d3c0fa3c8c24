package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/lease"
	"github.com/tenure-cni/tenure/daemon/node"
)

// holding is a view that holds the subnets in the network.
func holding(t *testing.T, s lease.Subnets, network string) lease.View {
	t.Helper()
	n, _, err := conf.ParseNetwork([]byte(network))
	if err != nil {
		t.Fatal(err)
	}
	h, err := lease.NewHolding(lease.NewKeys("/tenure/network"), lease.Entry{Subnets: s, Lease: 7, CreateRevision: 1, ModRevision: 1}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return lease.View{Held: true, Holding: h, Network: &n}
}

func TestSubnetEnv(t *testing.T) {
	four, six := netip.MustParsePrefix("10.5.34.0/24"), netip.MustParsePrefix("fd00:5:0:22::/64")
	const v4, v6 = `"Network":"10.5.0.0/16"`, `"EnableIPv6":true,"IPv6Network":"fd00:5::/48"`
	for name, c := range map[string]struct {
		s       lease.Subnets
		network string
		masq    bool
		want    string
	}{
		"IPv4": {lease.Subnets{V4: four}, "{" + v4 + "}", true,
			"FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.34.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"},
		"without masquerading": {lease.Subnets{V4: four}, "{" + v4 + "}", false,
			"FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.34.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n"},
		"both": {lease.Subnets{V4: four, V6: six}, "{" + v4 + "," + v6 + "}", true,
			"FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.34.1/24\nFLANNEL_IPV6_NETWORK=fd00:5::/48\nFLANNEL_IPV6_SUBNET=fd00:5:0:22::1/64\nFLANNEL_MTU=1430\nFLANNEL_IPMASQ=true\n"},
		"IPv6": {lease.Subnets{V6: six}, `{"EnableIPv4":false,` + v6 + "}", true,
			"FLANNEL_IPV6_NETWORK=fd00:5::/48\nFLANNEL_IPV6_SUBNET=fd00:5:0:22::1/64\nFLANNEL_MTU=1430\nFLANNEL_IPMASQ=true\n"},
		"a config's MTU": {lease.Subnets{V4: four}, "{" + v4 + `,"Backend":{"Type":"vxlan","MTU":1400}}`, true,
			"FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.34.1/24\nFLANNEL_MTU=1350\nFLANNEL_IPMASQ=true\n"},
	} {
		t.Run(name, func(t *testing.T) {
			got := subnetEnv(holding(t, c.s, c.network), node.Underlay{MTU: 1500}, c.masq)
			if diff := cmp.Diff(c.want, string(got)); diff != "" {
				t.Errorf("subnet.env (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWriteFiles(t *testing.T) {
	dir := t.TempDir()
	d := &daemon{cfg: conf.Daemon{Socket: "/run/other/tenured.sock", SubnetFile: filepath.Join(dir, "run", "subnet.env"), IPMasq: true}}
	v := holding(t, lease.Subnets{V4: netip.MustParsePrefix("10.5.34.0/24")}, `{"Network":"10.5.0.0/16"}`)
	if err := d.writeFiles(v, node.Underlay{MTU: 1500}); err != nil {
		t.Fatal(err)
	}
	if names := list(t, dir); len(names) != 1 {
		t.Errorf("without --cni-conf-file there are %v", names)
	}
	d.cfg.CNIConfFile = filepath.Join(dir, "net.d", "10-tenure.conflist")
	if err := d.writeFiles(v, node.Underlay{MTU: 1500}); err != nil {
		t.Fatal(err)
	}
	var conflist struct {
		CNIVersion  string
		CNIVersions []string
		Name        string
		Plugins     []struct {
			Type         string
			Tenure       struct{ Socket string }
			Capabilities map[string]bool
		}
	}
	b, err := os.ReadFile(d.cfg.CNIConfFile)
	if err == nil {
		err = json.Unmarshal(b, &conflist)
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(conflist.Plugins) != 2 || conflist.Plugins[0].Type != "tenure" || conflist.Plugins[1].Type != "portmap" ||
		!conflist.Plugins[1].Capabilities["portMappings"] {
		t.Errorf("plugins %+v, want tenure and portmap", conflist.Plugins)
	}
	if got := conflist.Plugins[0].Tenure.Socket; got != d.cfg.Socket {
		t.Errorf("the plugin is sent to %s, want this daemon's socket", got)
	}
	if conflist.Name != "tenure" || conflist.CNIVersion != "0.4.0" || strings.Join(conflist.CNIVersions, " ") != "0.3.1 0.4.0 1.0.0 1.1.0" {
		t.Errorf("conflist %q in %s %v", conflist.Name, conflist.CNIVersion, conflist.CNIVersions)
	}
	for _, file := range []string{d.cfg.SubnetFile, d.cfg.CNIConfFile} {
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o644 {
			t.Errorf("%s: mode %v, %v; others read it", file, info.Mode(), err)
		}
	}
}

func list(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestReplaceIsAtomic: who has the old file open reads the old file to its
// end, who opens it later the new one, and nothing else is left.
func TestReplaceIsAtomic(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "subnet.env")
	old, next := bytes.Repeat([]byte("old\n"), 1000), []byte("new\n")
	if err := replace(path, old); err != nil {
		t.Fatal(err)
	}
	reader, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Close() }()
	if err := replace(path, next); err != nil {
		t.Fatal(err)
	}
	was := make([]byte, len(old))
	if n, err := reader.ReadAt(was, 0); err != nil || !bytes.Equal(was[:n], old) {
		t.Errorf("the reader of the old file got %d bytes of it, %v", n, err)
	}
	if b, err := os.ReadFile(path); err != nil || !bytes.Equal(b, next) {
		t.Errorf("content %q, %v", b, err)
	}
	if names := list(t, dir); len(names) != 1 {
		t.Errorf("left behind: %v", names)
	}
}

func TestReplaceWritesOnlyWhatDiffers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "b", "subnet.env")
	inode := func() uint64 {
		t.Helper()
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		return st.Ino
	}
	if err := replace(path, []byte("same\n")); err != nil {
		t.Fatal(err)
	}
	before := inode()
	if err := replace(path, []byte("same\n")); err != nil {
		t.Fatal(err)
	}
	if inode() != before {
		t.Error("a file that was right already was written again")
	}
}

func TestReplaceFailsWhole(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "subnet.env")
	if err := os.MkdirAll(filepath.Join(path, "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	err := replace(path, []byte("new\n"))
	if err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("replacing a directory: %v", err)
	}
	if names := list(t, dir); len(names) != 1 {
		t.Errorf("left behind: %v", names)
	}
	if err := replace(filepath.Join("/dev/null", "x"), nil); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("a file below a file: %v", err)
	}
}

// TestReplaceShowsRuntimesOneFile: a runtime that watches its directory sees
// no other file that it would take for a configuration.
func TestReplaceShowsRuntimesOneFile(t *testing.T) {
	dir := t.TempDir()
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_CREATE|unix.IN_MOVED_TO); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "10-tenure.conflist")
	for _, content := range []string{"one", "two"} {
		if err := replace(path, []byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	moved := 0
	for _, e := range events(t, fd) {
		read := false
		for _, ext := range []string{".conf", ".conflist", ".json"} {
			read = read || filepath.Ext(e.name) == ext
		}
		if e.mask&unix.IN_MOVED_TO != 0 && e.name == filepath.Base(path) {
			moved++
		} else if read {
			t.Errorf("a runtime would have read %s", e.name)
		}
	}
	if moved != 2 {
		t.Errorf("the file was moved into place %d times, want 2", moved)
	}
}

type event struct {
	mask uint32
	name string
}

// events are those that the kernel has queued by now.
func events(t *testing.T, fd int) []event {
	t.Helper()
	buf := make([]byte, 16<<10)
	n, err := unix.Read(fd, buf)
	if err != nil {
		t.Fatal(err)
	}
	var all []event
	for at := 0; at+unix.SizeofInotifyEvent <= n; {
		e := (*unix.InotifyEvent)(unsafe.Pointer(&buf[at]))
		at += unix.SizeofInotifyEvent
		all = append(all, event{e.Mask, strings.TrimRight(string(buf[at:at+int(e.Len)]), "\x00")})
		at += int(e.Len)
	}
	return all
}
