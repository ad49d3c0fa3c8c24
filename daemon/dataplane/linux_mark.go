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
	// legacy is a raw socket, -1 until a legacy table was seen.
	legacy int
}

// noNFTPause is how long a kernel without nftables is not asked again.
const noNFTPause = time.Minute

func openMarker(ns namespace, at netns.NsHandle) *marker {
	m := &marker{ns: ns, seed: maphash.MakeSeed(), legacy: -1}
	if socket, err := nl.GetNetlinkSocketAt(at, netns.None(), unix.NETLINK_NETFILTER); err == nil {
		m.nft = &nl.SocketHandle{Socket: socket}
	}
	return m
}

func (m *marker) close() {
	if m.nft != nil {
		m.nft.Close()
	}
	if m.legacy >= 0 {
		_ = unix.Close(m.legacy)
	}
}

// mark is the state of both kinds. An error says that it cannot be told.
func (m *marker) mark() (string, error) {
	generation, err := m.generation()
	if err != nil {
		return "", err
	}
	legacy, err := m.legacyHash()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d/%x", generation, legacy), nil
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
func (m *marker) legacyHash() (uint64, error) {
	names, err := m.legacyTables()
	if err != nil || len(names) == 0 {
		return 0, err
	}
	if m.legacy < 0 {
		if err := m.ns.do(func() (err error) {
			m.legacy, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
			return err
		}); err != nil {
			return 0, fmt.Errorf("open raw socket for iptables: %w", err)
		}
	}
	var sum maphash.Hash
	sum.SetSeed(m.seed)
	for _, name := range names {
		table, err := legacyTable(m.legacy, name)
		if err != nil {
			return 0, fmt.Errorf("read legacy table %s: %w", name, err)
		}
		_, _ = sum.WriteString(name) // a Hash never fails
		_, _ = sum.Write(table)
	}
	return sum.Sum64(), nil
}

// legacyTables are the names of the legacy tables that exist.
func (m *marker) legacyTables() (names []string, err error) {
	err = m.ns.do(func() error {
		b, err := os.ReadFile("/proc/thread-self/net/ip_tables_names")
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
	// Of struct ipt_entry: where its own length is, its two counters, its end.
	entryNext, entryCounters, entryElems = 90, 96, 112
)

// legacyTable returns the entries of a table with all counters at zero.
func legacyTable(socket int, name string) ([]byte, error) {
	for range dumpTries {
		info := make([]byte, infoSize)
		copy(info, name)
		if err := getsockopt(socket, iptGetInfo, info); err != nil {
			return nil, err
		}
		size := binary.NativeEndian.Uint32(info[infoEntries:])
		table := make([]byte, entriesAt+size)
		copy(table, name)
		binary.NativeEndian.PutUint32(table[32:], size)
		err := getsockopt(socket, iptGetEntries, table)
		if errors.Is(err, unix.EAGAIN) {
			continue // the table has just been replaced
		}
		if err != nil {
			return nil, err
		}
		return withoutCounters(table[entriesAt:])
	}
	return nil, unix.EAGAIN
}

func withoutCounters(entries []byte) ([]byte, error) {
	for at := 0; at < len(entries); {
		if at+entryElems > len(entries) {
			return nil, fmt.Errorf("entry at %d is cut off", at)
		}
		clear(entries[at+entryCounters : at+entryElems])
		next := int(binary.NativeEndian.Uint16(entries[at+entryNext:]))
		if next < entryElems {
			return nil, fmt.Errorf("entry at %d has a length of %d", at, next)
		}
		at += next
	}
	return entries, nil
}

func getsockopt(socket, option int, value []byte) error {
	length := uint32(len(value))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(socket), unix.SOL_IP, uintptr(option),
		uintptr(unsafe.Pointer(&value[0])), uintptr(unsafe.Pointer(&length)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
