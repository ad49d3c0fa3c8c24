package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ErrInUse says that a live daemon listens on the socket.
var ErrInUse = errors.New("another daemon is listening")

// ErrNotASocket says that something else lies where the socket should.
var ErrNotASocket = errors.New("exists and is no socket; it is left alone, move it away or choose another --socket")

// watchEvery is how soon it is noticed that somebody removed the socket.
const watchEvery = time.Second

// Socket listens on a unix socket, and again where its file was removed.
type Socket struct {
	path string

	mu     sync.Mutex
	now    *net.UnixListener
	file   fs.FileInfo // of now, to know it by
	closed bool
}

// Listen opens the unix socket at path with mode 0600, making its directory.
// A socket nobody listens on is replaced. Errors wrap ErrInUse or
// ErrNotASocket, or are the file system's.
func Listen(path string) (*Socket, error) {
	s := &Socket{path: path}
	var err error
	if s.now, s.file, err = bind(path); err != nil {
		return nil, err
	}
	return s, nil
}

// Watch listens anew when the socket's file has been removed: its callers find
// nobody there, however well the daemon is. ahead is called before each
// try. It ends with ctx.
func (s *Socket) Watch(ctx context.Context, log *slog.Logger, ahead func(context.Context)) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	last := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if s.inPlace() {
			last = ""
			continue
		}
		ahead(ctx)
		err := s.again()
		if err == nil {
			log.Warn("the socket's file had been removed, listening again", "socket", s.path)
		} else if err.Error() != last {
			log.Error("the socket's file has been removed and cannot be made again, trying on", "error", err)
		}
		last = fmt.Sprint(err)
	}
}

// inPlace says whether a caller that opens the path comes here. What cannot be
// looked at is left as it is.
func (s *Socket) inPlace() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	file, err := os.Lstat(s.path)
	return s.closed || err == nil && os.SameFile(file, s.file) ||
		err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR)
}

// again puts a new listener in the place of the one whose file is gone. Who is
// connected stays so.
func (s *Socket) again() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	l, file, err := bind(s.path)
	if err != nil {
		return err
	}
	old := s.now
	s.now, s.file = l, file
	return old.Close() // wakes Accept
}

// Accept implements net.Listener.
func (s *Socket) Accept() (net.Conn, error) {
	for {
		l := s.current()
		c, err := l.Accept()
		if err == nil || !errors.Is(err, net.ErrClosed) || l == s.current() {
			return c, err
		}
	}
}

func (s *Socket) current() *net.UnixListener {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

// Addr implements net.Listener.
func (s *Socket) Addr() net.Addr { return &net.UnixAddr{Name: s.path, Net: "unix"} }

// Close implements net.Listener. It removes the socket's file, unless another
// has taken its place.
func (s *Socket) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		if file, err := os.Lstat(s.path); err == nil && os.SameFile(file, s.file) {
			_ = os.Remove(s.path)
		}
	}
	s.closed = true
	return s.now.Close()
}

// bind makes the socket's file and listens.
func bind(path string) (*net.UnixListener, fs.FileInfo, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, nil, fmt.Errorf("directory of socket: %w", err)
	}
	if err := clearStale(path); err != nil {
		return nil, nil, err
	}
	l, err := listenMasked(path)
	if err != nil {
		return nil, nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false) // it would remove whatever is there by then
	file, err := os.Lstat(path)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("look at socket: %w", err), l.Close())
	}
	return l, file, nil
}

// listenMasked makes the file with mode 0600 from its first instant. The mask
// for that is the thread's own, which ends with it: other files are made at the
// same time. Where a container forbids unshare, it is the process's for a
// moment.
func listenMasked(path string) (l *net.UnixListener, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlock: the thread ends with the goroutine
		_ = unix.Unshare(unix.CLONE_FS)
		defer unix.Umask(unix.Umask(0o177))
		l, err = net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	}()
	<-done
	return l, err
}

// clearStale removes a dead daemon's socket and nothing else.
func clearStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at socket: %w", err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s: %w", path, ErrNotASocket)
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = c.Close()
		return fmt.Errorf("%s: %w", path, ErrInUse)
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("%s: cannot tell whether a daemon is alive: %w", path, err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove the socket a dead daemon left: %w", err)
	}
	return nil
}

type peerKey struct{}

// withPeer keeps the caller's credentials with its connection.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	uc, ok := c.(*net.UnixConn)
	if !ok {
		return ctx
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return ctx
	}
	var cred *unix.Ucred
	if err := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil || cred == nil {
		return ctx
	}
	return context.WithValue(ctx, peerKey{}, cred)
}

// allowed says whether the caller is root or the daemon's own user.
func allowed(ctx context.Context) bool {
	cred, ok := ctx.Value(peerKey{}).(*unix.Ucred)
	return ok && (cred.Uid == 0 || int(cred.Uid) == os.Geteuid())
}
