package doctor

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/dataplane"
	"github.com/tenure-cni/tenure/daemon/fence"
)

// Options say where to look.
type Options struct {
	// Instance is tenured's --name, Underlay its --iface; "" for what the
	// daemon says or else the default route's.
	Instance, Underlay string
	Socket             string
	RunDir, StateDir   string
	ConfDir, BinDir    string
}

// Observe looks at the host it runs on. What cannot be seen is left out or
// said in the facts; there is no error. ctx bounds all of it.
func Observe(ctx context.Context, o Options) Facts {
	f := Facts{
		Instance: o.Instance, Root: os.Geteuid() == 0, Socket: o.Socket, Underlay: o.Underlay,
		Kernel: release(), Clock: clock(), Neighbours: neighbours("arp_cache"), Neighbours6: neighbours("ndisc_cache"),
		Run: directory(o.RunDir), State: directory(o.StateDir), CNI: observeCNI(o.ConfDir, o.BinDir),
		IPTables: observeIPTables(ctx), ReadOnlySysctls: readOnly("/proc/sys"),
	}
	f.ask(ctx)
	f.look(o.RunDir)
	f.Sysctls = sysctls(f.Links)
	f.readSubnetFile(filepath.Join(o.RunDir, "subnet.env"))
	if f.Root {
		f.KubeProxy = kubeProxy(ctx, f.IPTables.Path)
		t := try(ctx, f.IPTables.Path)
		f.Trials = &t
	}
	if f.Early = f.odd(); len(f.Early) > 0 {
		rest(ctx, lookAgain)
		f.look(o.RunDir)
	}
	return f
}

// lookAgain is longer than an ADD takes between record and interface, also on
// a busy node.
const lookAgain = 500 * time.Millisecond

func rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// look reads devices and ledger, which are compared.
func (f *Facts) look(runDir string) {
	f.observeLinks()
	f.Uplink = Uplink{}
	f.observeUplink()
	if f.Root {
		f.readLedger(filepath.Join(runDir, "ledger.json"))
	}
}

// askTimeout bounds the question to the daemon.
const askTimeout = 5 * time.Second

func (f *Facts) ask(ctx context.Context) {
	_, err := os.Stat(f.Socket)
	f.SocketThere = err == nil
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	s, err := api.NewClient(f.Socket).Status(ctx)
	if err != nil {
		f.StatusErr = err.Error()
		return
	}
	f.Status = s
	if f.Underlay == "" {
		f.Underlay = s.Interface
	}
}

func release() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

func clock() Clock {
	offset, err := fence.TimeNamespaceOffset()
	if err != nil {
		return Clock{Err: err.Error()}
	}
	return Clock{Offset: offset}
}

func observeIPTables(ctx context.Context) IPTables {
	path, err := exec.LookPath("iptables")
	if err != nil {
		return IPTables{}
	}
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return IPTables{Path: path, Version: err.Error()}
	}
	return IPTables{Path: path, Version: strings.TrimSpace(string(out))}
}

// kubeProxy looks for the chain of kube-proxy. Saving, unlike listing, makes no
// table that is not there.
func kubeProxy(ctx context.Context, iptables string) bool {
	if iptables == "" {
		return false
	}
	out, err := exec.CommandContext(ctx, iptables+"-save").Output()
	return err == nil && bytes.Contains(out, []byte(":KUBE-SERVICES "))
}

// sysctls reads what is judged; what is not there is left out.
func sysctls(links map[string]Link) map[string]string {
	paths := []string{ipForward, ipForward6, bridgeNF, conntrackCount, conntrackMax, confOf("all", "rp_filter")}
	for n := 1; n <= 3; n++ {
		paths = append(paths, dataplane.NeighbourThreshold(false, n), dataplane.NeighbourThreshold(true, n))
	}
	for name := range links {
		paths = append(paths, confOf(name, "rp_filter"), confOf(name, "forwarding"))
	}
	all := map[string]string{}
	for _, path := range paths {
		// A dot in a device's name is no separator here: these are files.
		if b, err := os.ReadFile(filepath.Join("/proc/sys", path)); err == nil {
			all[path] = strings.TrimSpace(string(b))
		}
	}
	return all
}

// neighbours reads the counters of a table, which only the first namespace
// shows: a line of hexadecimal numbers for each processor.
func neighbours(table string) Neighbours {
	b, err := os.ReadFile("/proc/net/stat/" + table)
	if err != nil {
		return Neighbours{}
	}
	return parseNeighbours(b)
}

func parseNeighbours(text []byte) Neighbours {
	var n Neighbours
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Scan()
	names := strings.Fields(lines.Text())
	for lines.Scan() {
		for i, field := range strings.Fields(lines.Text()) {
			v, err := strconv.ParseUint(field, 16, 64)
			switch {
			case err != nil || i >= len(names):
			case names[i] == "entries": // the same in each line
				n.Entries = v
			case names[i] == "table_fulls":
				n.Fulls += v
			}
		}
	}
	return n
}

func readOnly(path string) bool {
	var s unix.Statfs_t
	return unix.Statfs(path, &s) == nil && s.Flags&unix.ST_RDONLY != 0
}

// directory looks at a directory, or at the nearest one above it.
func directory(path string) Directory {
	d := Directory{Path: path}
	if path == "" {
		return d
	}
	at := path
	for {
		info, err := os.Stat(at)
		if err == nil && !info.IsDir() {
			d.Err = at + " is not a directory"
			return d
		}
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) || at == filepath.Dir(at) {
			d.Err = err.Error()
			return d
		}
		at = filepath.Dir(at)
	}
	d.There = at == path
	var s unix.Statfs_t
	if err := unix.Statfs(at, &s); err != nil {
		d.Err = fmt.Sprintf("look at the file system of %s: %v", at, err)
		return d
	}
	d.Volatile = s.Type == unix.TMPFS_MAGIC || s.Type == unix.RAMFS_MAGIC
	d.ReadOnly = s.Flags&unix.ST_RDONLY != 0
	size := uint64(s.Bsize)
	d.Free, d.Total, d.FreeFiles, d.Files = s.Bavail*size, s.Blocks*size, s.Ffree, s.Files
	return d
}

// readLedger reads the record without the daemon: it is replaced as a whole,
// never written in place.
func (f *Facts) readLedger(path string) {
	f.Ledger, f.LedgerErr = nil, ""
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var form struct {
		Allocations []struct {
			ContainerID string         `json:"containerID"`
			Addresses   []netip.Prefix `json:"addresses"`
			Host        string         `json:"host"`
		} `json:"allocations"`
	}
	if err == nil {
		err = json.Unmarshal(b, &form)
	}
	if err != nil {
		f.LedgerErr = fmt.Sprintf("%s: %v", path, err)
		return
	}
	f.Ledger = []Recorded{}
	for _, a := range form.Allocations {
		f.Ledger = append(f.Ledger, Recorded{a.ContainerID, a.Host, a.Addresses})
	}
}

func (f *Facts) readSubnetFile(path string) {
	b, err := os.ReadFile(path)
	if err != nil {
		return
	}
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		p, err := netip.ParsePrefix(value)
		switch {
		case err != nil:
		case name == "FLANNEL_SUBNET":
			f.Announced = p
		case name == "FLANNEL_NETWORK":
			f.Network = p
		case name == "FLANNEL_IPV6_SUBNET":
			f.Announced6 = p
		case name == "FLANNEL_IPV6_NETWORK":
			f.Network6 = p
		}
	}
}
