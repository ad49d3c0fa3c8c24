package e2e

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// gateWord makes the test binary the program that hands its right to some
// system calls to the test and then becomes the program that its further words
// name.
const gateWord = "call-gate"

func TestMain(m *testing.M) {
	if len(os.Args) > 4 && os.Args[1] == gateWord {
		fmt.Fprintln(os.Stderr, enterGate(os.Args[2], os.Args[3], os.Args[4:]))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// gate decides what becomes of some system calls of a real daemon: of each
// bpf(2), for a kernel that refuses the fence's program, and later does not, or
// of those that it shall die at. It is a seccomp filter whose questions the test
// answers.
type gate struct {
	socket string
	refuse atomic.Pointer[refusal]
	asked  atomic.Int64 // how many calls were refused
	calls  string       // the numbers of the calls in question
	death  countdown
}

// refusal is the error that a command of bpf(2) gets; every command, if
// negative.
type refusal struct {
	command int
	errno   unix.Errno
}

// bpfProgLoad is BPF_PROG_LOAD.
const bpfProgLoad = 5

// newGate stands until the test ends. It is open.
func newGate(t *testing.T) *gate {
	t.Helper()
	dir, err := os.MkdirTemp("", "gate")
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{socket: filepath.Join(dir, "s"), calls: strconv.Itoa(unix.SYS_BPF)}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: g.socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		if err := g.serve(l, quit); err != nil {
			t.Errorf("gate: %v", err)
		}
	}()
	t.Cleanup(func() {
		close(quit)
		_ = l.Close()
		<-done
		_ = os.RemoveAll(dir)
	})
	return g
}

// wrapper is what a program is started behind.
func (g *gate) wrapper(t *testing.T) []string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []string{self, gateWord, g.socket, g.calls}
}

// serve takes the filter that one program hands over, and answers for it.
func (g *gate) serve(l *net.UnixListener, quit <-chan struct{}) error {
	conn, err := l.AcceptUnix()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(make([]byte, 1), oob)
	if err != nil {
		return err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		return fmt.Errorf("no descriptor came: %w", errors.Join(err))
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return fmt.Errorf("no descriptor came: %w", errors.Join(err))
	}
	defer func() { _ = unix.Close(fds[0]) }()
	return g.answer(fds[0], quit)
}

// The kernel's struct seccomp_notif and seccomp_notif_resp, and what they are
// asked and answered with.
type (
	question struct {
		id         uint64
		pid, flags uint32
		nr         int32
		arch       uint32
		ip         uint64
		args       [6]uint64
	}
	reply struct {
		id    uint64
		val   int64
		errno int32
		flags uint32
	}
)

const (
	notifRecv     = 0xc0502100
	notifSend     = 0xc0182101
	replyContinue = 1
)

func (g *gate) answer(fd int, quit <-chan struct{}) error {
	for {
		select {
		case <-quit:
			return nil
		default:
		}
		ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(ready, int(100*time.Millisecond/time.Millisecond))
		switch {
		case errors.Is(err, unix.EINTR) || err == nil && n == 0:
			continue
		case err != nil:
			return fmt.Errorf("wait for a call: %w", err)
		case ready[0].Revents&unix.POLLHUP != 0:
			return nil // the program has ended
		}
		var q question
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), notifRecv, uintptr(unsafe.Pointer(&q))); errno != 0 {
			if errno == unix.ENOENT || errno == unix.EINTR {
				continue // the caller was killed meanwhile
			}
			return fmt.Errorf("take a call: %w", errno)
		}
		g.death.count()
		r := reply{id: q.id, flags: replyContinue}
		if no := g.refuse.Load(); no != nil && (no.command < 0 || uint64(no.command) == q.args[0]) {
			r.flags, r.errno = 0, -int32(no.errno)
			g.asked.Add(1)
		}
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), notifSend, uintptr(unsafe.Pointer(&r))); errno != 0 && errno != unix.ENOENT {
			return fmt.Errorf("answer a call: %w", errno)
		}
	}
}

// enterGate is the other end: it does not return if all goes well.
func enterGate(socket, calls string, argv []string) error {
	runtime.LockOSThread() // the filter is the thread's, and the thread becomes the program
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return err
	}
	var numbers []uint32
	for _, word := range strings.Split(calls, ",") {
		n, err := strconv.ParseUint(word, 10, 32)
		if err != nil {
			return err
		}
		numbers = append(numbers, uint32(n))
	}
	fd, err := filterCalls(numbers)
	if err != nil {
		return err
	}
	if _, _, err := conn.WriteMsgUnix([]byte{0}, unix.UnixRights(fd), nil); err != nil {
		return err
	}
	return fmt.Errorf("become %s: %w", argv[0], unix.Exec(argv[0], argv, os.Environ()))
}

// filterCalls asks the listener, whose descriptor it returns, about each call
// of the given numbers.
func filterCalls(calls []uint32) (int, error) {
	const (
		load, equal, give  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
		allow, ask         = 0x7fff0000, 0x7fc00000
		setFilter, aListen = 1, 1 << 3
	)
	filter := []unix.SockFilter{{Code: load, K: 0}} // the number of the call
	for i, number := range calls {
		filter = append(filter, unix.SockFilter{Code: equal, K: number, Jt: uint8(len(calls) - i)})
	}
	filter = append(filter, unix.SockFilter{Code: give, K: allow}, unix.SockFilter{Code: give, K: ask})
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return 0, fmt.Errorf("set no_new_privs: %w", err)
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, setFilter, aListen, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return 0, fmt.Errorf("filter system calls: %w", errno)
	}
	return int(fd), nil
}
