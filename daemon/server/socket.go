package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// ErrInUse says that a live daemon listens on the socket.
var ErrInUse = errors.New("another daemon is listening")

// ErrNotASocket says that something else lies where the socket should.
var ErrNotASocket = errors.New("exists and is no socket; it is left alone, move it away or choose another --socket")

// Listen opens the unix socket at path with mode 0600, making its directory.
// A socket nobody listens on is replaced. Errors wrap ErrInUse or
// ErrNotASocket, or are the file system's.
func Listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("directory of socket: %w", err)
	}
	if err := clearStale(path); err != nil {
		return nil, err
	}
	// The mask makes the file 0600 from its first instant; it is the process's,
	// but nothing else creates files before the daemon listens.
	old := unix.Umask(0o177)
	l, err := net.Listen("unix", path)
	unix.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return l, nil
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
