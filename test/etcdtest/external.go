package etcdtest

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"

	"github.com/tenure-cni/tenure/test/packaged"
)

// killWait is how long an etcd may take to end in good order.
const killWait = 5 * time.Second

// external is an etcd in a process of its own. It listens on a loopback
// address that nobody else has, since its ports are known beforehand.
type external struct {
	program, addr string
	process       *exec.Cmd
	ended         <-chan struct{} // nil before the first start
}

func newExternal(program string) *external {
	own := netip.AddrFrom4([4]byte{127, byte(1 + rand.N(254)), byte(rand.N(256)), byte(1 + rand.N(254))})
	return &external{program: program, addr: own.String()}
}

func (e *external) host() string { return e.addr + ":2379" }

// start runs it on the directory, token and certificates of cfg.
func (e *external) start(t testing.TB, cfg *embed.Config) {
	t.Helper()
	scheme := cfg.ListenClientUrls[0].Scheme + "://"
	m := packaged.Member{Name: cfg.Name, Dir: cfg.Dir, Client: scheme + e.host(), Peer: "http://" + e.addr + ":2380", Token: cfg.InitialClusterToken,
		CertFile: cfg.ClientTLSInfo.CertFile, KeyFile: cfg.ClientTLSInfo.KeyFile, ClientCA: cfg.ClientTLSInfo.TrustedCAFile}
	m.Cluster = m.Name + "=" + m.Peer
	var said bytes.Buffer
	e.process = exec.Command(e.program, m.Flags()...)
	e.process.Stdout, e.process.Stderr = &said, &said
	ended, err := run(e.process)
	if err != nil {
		t.Fatalf("start %s: %v", e.program, err)
	}
	e.ended = ended
	if err := e.listens(t.Context()); err != nil {
		e.stop()
		t.Fatalf("start %s: %v\n%s", e.program, err, said.String())
	}
}

// stop ends it in good order.
func (e *external) stop() {
	if e.ended == nil {
		return
	}
	_ = e.process.Process.Signal(syscall.SIGTERM)
	select {
	case <-e.ended:
	case <-time.After(killWait):
		_ = e.process.Process.Kill()
		<-e.ended
	}
}

// run starts a program that does not outlive this process. The kernel sees to
// that by the thread that started it, which is kept for as long.
func run(cmd *exec.Cmd) (ended <-chan struct{}, err error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, done := make(chan error, 1), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer close(done)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	return done, <-started
}

// listens waits until it takes connections; it answers once it has a leader.
func (e *external) listens(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", e.host())
		if err == nil {
			return conn.Close()
		}
		select {
		case <-again.C:
		case <-e.ended:
			return errors.New("it has ended")
		case <-ctx.Done():
			return err
		}
	}
}
