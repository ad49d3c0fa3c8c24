package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"os"
	"strings"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// marker tells states of the firewall apart without reading it. The nft kind
// has a number that every commit raises. The legacy kind has nothing of the
// sort, but hands its tables out as they lie in the kernel.
type marker struct {
	ns   namespace
	seed maphash.Seed
	// nft is nil on a kernel without netfilter.
	nft *nl.SocketHandle
	// noNFT is until when the kernel is known to have no nftables. It looks for
	// a module each time it is asked.
	noNFT time.Time
	// legacy are raw sockets for IPv4 and IPv6, -1 until a legacy table of the
	// family was seen.
	legacy [2]int
}

// noNFTPause is how long a kernel without nftables is not asked again.
const noNFTPause = time.Minute

func openMarker(ns namespace, at netns.NsHandle) *marker {
	m := &marker{ns: ns, seed: maphash.MakeSeed(), legacy: [2]int{-1, -1}}
	if socket, err := nl.GetNetlinkSocketAt(at, netns.None(), unix.NETLINK_NETFILTER); err == nil {
		m.nft = &nl.SocketHandle{Socket: socket}
	}
	return m
}

func (m *marker) close() {
	if m.nft != nil {
		m.nft.Close()
	}
	for _, socket := range m.legacy {
		if socket >= 0 {
			_ = unix.Close(socket)
		}
	}
}

// mark is the state of both kinds. An error says that it cannot be told.
func (m *marker) mark() (string, error) {
	generation, err := m.generation()
	if err != nil {
		return "", err
	}
	mark := fmt.Sprint(generation)
	for i, kind := range []legacyKind{legacyKindOf(false), legacyKindOf(true)} {
		legacy, err := m.legacyHash(&m.legacy[i], kind)
		if err != nil {
			return "", err
		}
		mark += fmt.Sprintf("/%x", legacy)
	}
	return mark, nil
}

// generation is the number of the latest commit of nftables; 0 on a kernel
// without them.
func (m *marker) generation() (uint32, error) {
	if m.nft == nil {
		return 0, errors.New("no netfilter socket")
	}
	if time.Now().Before(m.noNFT) {
		return 0, nil
	}
	const getGeneration = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN
	req := nl.NewNetlinkRequest(getGeneration, 0)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: m.nft}
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC})
	answers, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		m.noNFT = time.Now().Add(noNFTPause)
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("get generation of nftables: %w", err)
	}
	for _, answer := range answers {
		attrs, err := nl.ParseRouteAttr(answer[nl.SizeofNfgenmsg:])
		if err != nil {
			return 0, fmt.Errorf("decode generation of nftables: %w", err)
		}
		for _, a := range attrs {
			if a.Attr.Type == unix.NFTA_GEN_ID && len(a.Value) == 4 {
				return binary.BigEndian.Uint32(a.Value), nil
			}
		}
	}
	return 0, errors.New("no generation of nftables in the kernel's answer")
}

// legacyHash is one of all legacy tables that exist; 0 without any. To ask for
// a table that does not exist would make it.
func (m *marker) legacyHash(socket *int, kind legacyKind) (uint64, error) {
	names, err := m.legacyTables(kind)
	if err != nil || len(names) == 0 {
		return 0, err
	}
	if *socket < 0 {
		if err := m.ns.do(func() (err error) {
			*socket, err = unix.Socket(kind.family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
			return err
		}); err != nil {
			return 0, fmt.Errorf("open raw socket for legacy tables: %w", err)
		}
	}
	var sum maphash.Hash
	sum.SetSeed(m.seed)
	for _, name := range names {
		table, err := legacyTable(*socket, name, kind)
		if err != nil {
			return 0, fmt.Errorf("read legacy table %s: %w", name, err)
		}
		_, _ = sum.WriteString(name) // a Hash never fails
		_, _ = sum.Write(table)
	}
	return sum.Sum64(), nil
}

// legacyTables are the names of the legacy tables that exist.
func (m *marker) legacyTables(kind legacyKind) (names []string, err error) {
	err = m.ns.do(func() error {
		b, err := os.ReadFile("/proc/thread-self/net/" + kind.names)
		names = strings.Fields(string(b))
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	})
	return names, err
}

// The interface of the legacy kind, from linux/netfilter_ipv4/ip_tables.h.
const (
	iptGetInfo    = 64 // IPT_SO_GET_INFO
	iptGetEntries = 65 // IPT_SO_GET_ENTRIES
	// Of struct ipt_getinfo: its size, and where the size of the entries is.
	infoSize, infoEntries = 84, 80
	// Of struct ipt_get_entries: name and size, then the entries.
	entriesAt = 40
)

// legacyKind is how a family's tables lie in the kernel: those of
// linux/netfilter_ipv6/ip6_tables.h have longer entries and are otherwise alike.
type legacyKind struct {
	names         string
	family, level int
	// Of struct ipt_entry: where its own length is, its two counters, its end.
	next, counters, elems int
}

func legacyKindOf(six bool) legacyKind {
	if six {
		return legacyKind{"ip6_tables_names", unix.AF_INET6, unix.SOL_IPV6, 142, 152, 168}
	}
	return legacyKind{"ip_tables_names", unix.AF_INET, unix.SOL_IP, 90, 96, 112}
}

// legacyTable returns the entries of a table with all counters at zero.
func legacyTable(socket int, name string, kind legacyKind) ([]byte, error) {
	for range dumpTries {
		info := make([]byte, infoSize)
		copy(info, name)
		if err := getsockopt(socket, kind.level, iptGetInfo, info); err != nil {
			return nil, err
		}
		size := binary.NativeEndian.Uint32(info[infoEntries:])
		table := make([]byte, entriesAt+size)
		copy(table, name)
		binary.NativeEndian.PutUint32(table[32:], size)
		err := getsockopt(socket, kind.level, iptGetEntries, table)
		if errors.Is(err, unix.EAGAIN) {
			continue // the table has just been replaced
		}
		if err != nil {
			return nil, err
		}
		return withoutCounters(table[entriesAt:], kind)
	}
	return nil, unix.EAGAIN
}

func withoutCounters(entries []byte, kind legacyKind) ([]byte, error) {
	for at := 0; at < len(entries); {
		if at+kind.elems > len(entries) {
			return nil, fmt.Errorf("entry at %d is cut off", at)
		}
		clear(entries[at+kind.counters : at+kind.elems])
		next := int(binary.NativeEndian.Uint16(entries[at+kind.next:]))
		if next < kind.elems {
			return nil, fmt.Errorf("entry at %d has a length of %d", at, next)
		}
		at += next
	}
	return entries, nil
}

func getsockopt(socket, level, option int, value []byte) error {
	length := uint32(len(value))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(socket), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&value[0])), uintptr(unsafe.Pointer(&length)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
