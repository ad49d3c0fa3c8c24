package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tenure-cni/tenure/test/lab"
	"golang.org/x/sys/unix"
)

const (
	// burst is how many packets one sample of a flood is.
	burst = 500
	// small is a packet's payload, in bytes.
	small = 64
	// asked is how many requests one turn makes.
	asked = 3000
	// port is where servers of a turn listen.
	port = 9000
	// blocked bounds what waits in the kernel.
	blocked = 5 * time.Second
)

// spent is CPU time in seconds: of the whole machine, in ticks of 1/100 s, and
// of what this process, its ended children and the kernel's threads for packets
// have used, in nanoseconds. On a machine with other work only the second tells.
type spent struct{ all, own float64 }

func (s spent) since(before spent) spent { return spent{s.all - before.all, s.own - before.own} }

func spentNow() (spent, error) {
	all, err := cpuSeconds()
	if err != nil {
		return spent{}, err
	}
	own := cpuTime().Seconds()
	threads, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return spent{}, err
	}
	for _, file := range threads {
		name, err := os.ReadFile(file)
		if err != nil || !strings.HasPrefix(string(name), "ksoftirqd/") {
			continue // it has ended, or is another
		}
		stat, err := os.ReadFile(filepath.Join(filepath.Dir(file), "schedstat"))
		if err != nil {
			return spent{}, fmt.Errorf("read CPU time: %w", err)
		}
		first, _, _ := strings.Cut(string(stat), " ")
		ns, err := strconv.ParseFloat(first, 64)
		if err != nil {
			return spent{}, fmt.Errorf("read CPU time: %w", err)
		}
		own += ns / 1e9
	}
	return spent{all, own}, nil
}

// send moves so many GiB once over TCP, over so many streams together.
func (p path) send(ctx context.Context, t *table, volume float64, streams int) error {
	server := make(chan error, 1)
	serving, stop := context.WithCancel(ctx)
	defer stop()
	before, err := spentNow()
	if err != nil {
		return err
	}
	go func() {
		_, err := p.to.Exec(serving, "iperf3", "-s", "-1")
		server <- err
	}()
	if err := p.listens(ctx, 5201); err != nil {
		stop()
		return errors.Join(err, <-server)
	}
	out, err := p.from.Exec(ctx, "iperf3", "-c", p.addr.String(), "-n", strconv.Itoa(int(volume*1024))+"M", "-P", strconv.Itoa(streams), "-J")
	if err != nil {
		stop()
		return errors.Join(err, <-server)
	}
	if err := <-server; err != nil {
		return err
	}
	after, err := spentNow()
	if err != nil {
		return err
	}
	var report struct {
		End struct {
			Received struct {
				Rate  float64 `json:"bits_per_second"`
				Bytes float64 `json:"bytes"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		return fmt.Errorf("decode report of iperf3: %w", err)
	}
	gib, used := report.End.Received.Bytes/(1<<30), after.since(before)
	suffix := ""
	if streams > 1 {
		suffix = fmt.Sprintf(" ×%d", streams)
	}
	t.add(p.name, "Gbit/s"+suffix, report.End.Received.Rate/1e9)
	t.add(p.name, cpuPerGiB+suffix, used.all/gib)
	t.add(p.name, ownPerGiB+suffix, used.own/gib)
	return nil
}

// listens waits until something listens on a TCP port of the receiver. To
// connect would use up the one test of iperf3; the socket table does not.
func (p path) listens(ctx context.Context, port int) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return lab.Eventually(ctx, "a server listens", func() error {
		out, err := p.to.Exec(ctx, "ss", "-Hltn", fmt.Sprintf("sport = :%d", port))
		if err == nil && out == "" {
			err = fmt.Errorf("nothing on port %d yet", port)
		}
		return err
	})
}

// flood sends small packets as fast as one thread can, up to the receiver's
// socket, which nobody reads. The kernel does nearly all of that in the
// sender's own time: its cheapest bursts tell what a packet costs, whatever else
// the machine does.
func (p path) flood(t *table, packets int) (err error) {
	sink, err := socketIn(p.to, unix.SOCK_DGRAM)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Close(sink)) }()
	if err := unix.Bind(sink, &unix.SockaddrInet4{Port: port}); err != nil {
		return fmt.Errorf("bind in %s: %w", p.to.Name(), err)
	}
	source, err := socketIn(p.from, unix.SOCK_DGRAM)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Close(source)) }()
	if err := unix.Connect(source, at(p.addr)); err != nil {
		return fmt.Errorf("connect from %s: %w", p.from.Name(), err)
	}
	before, err := spentNow()
	if err != nil {
		return err
	}
	began := time.Now()
	bursts, err := sendBursts(p.from, source, packets)
	if err != nil {
		return fmt.Errorf("send from %s: %w", p.from.Name(), err)
	}
	took := time.Since(began)
	after, err := spentNow()
	if err != nil {
		return err
	}
	millions := float64(packets) / 1e6
	t.add(p.name, "UDP kpkt/s", millions*1e3/took.Seconds())
	t.add(p.name, "UDP CPU s/M", after.since(before).all/millions)
	t.add(p.name, packetCost, percentile(bursts, 10))
	return nil
}

// sendBursts returns the sending thread's time per packet of each burst, in µs.
func sendBursts(from *lab.NS, socket, packets int) (all []float64, err error) {
	payload := make([]byte, small)
	err = from.Do(func() error { // which is a thread of its own
		for range packets / burst {
			began, err := threadTime()
			if err != nil {
				return err
			}
			for range burst {
				if _, err := unix.Write(socket, payload); err != nil {
					return err
				}
			}
			ended, err := threadTime()
			if err != nil {
				return err
			}
			all = append(all, float64((ended-began).Nanoseconds())/1e3/burst)
		}
		return nil
	})
	return all, err
}

func threadTime() (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		return 0, fmt.Errorf("read the thread's CPU time: %w", err)
	}
	return time.Duration(ts.Nano()), nil
}

// ask takes the median of requests that each wait for the answer to the last,
// one byte each over one connection.
func (p path) ask(t *table) error {
	var times []float64
	err := p.served(func(conn int) error {
		b := make([]byte, 1)
		for n, err := uncut(unix.Read, conn, b); n > 0 && err == nil; n, err = uncut(unix.Read, conn, b) {
			if _, err := uncut(unix.Write, conn, b); err != nil {
				return err
			}
		}
		return nil
	}, func() error {
		conn, err := p.connect()
		if err != nil {
			return err
		}
		b := make([]byte, 1)
		for range asked {
			began := time.Now()
			if _, err := uncut(unix.Write, conn, b); err != nil {
				return errors.Join(err, unix.Close(conn))
			}
			if _, err := uncut(unix.Read, conn, b); err != nil {
				return errors.Join(err, unix.Close(conn))
			}
			times = append(times, float64(time.Since(began).Nanoseconds())/1e3)
		}
		return unix.Close(conn)
	})
	if err != nil {
		return fmt.Errorf("ask %s: %w", p.addr, err)
	}
	t.add(p.name, askCost, median(times))
	return nil
}

// uncut makes a call again that one of the runtime's signals has ended: a socket
// with a limit of time is not taken up again by the kernel.
func uncut(call func(int, []byte) (int, error), conn int, b []byte) (int, error) {
	for {
		if n, err := call(conn, b); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// dial makes connections one after the other, each closed at once.
func (p path) dial(t *table, connections int) error {
	before, err := spentNow()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := p.served(nil, func() error {
		for range connections {
			conn, err := p.connect()
			if err != nil {
				return err
			}
			// A reset leaves nothing behind that waits for a minute.
			reset := unix.SetsockoptLinger(conn, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
			if err := errors.Join(reset, unix.Close(conn)); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return fmt.Errorf("dial %s: %w", p.addr, err)
	}
	took := time.Since(began)
	after, err := spentNow()
	if err != nil {
		return err
	}
	used := after.since(before)
	t.add(p.name, "connections/s", float64(connections)/took.Seconds())
	t.add(p.name, "CPU ms/1000", used.all*1e6/float64(connections))
	t.add(p.name, ownPerDial, used.own*1e6/float64(connections))
	return nil
}

// served runs client beside a server that takes one connection after the other,
// until the client has ended.
func (p path) served(serve func(conn int) error, client func() error) (err error) {
	ln, err := socketIn(p.to, unix.SOCK_STREAM)
	if err != nil {
		return err
	}
	if err := errors.Join(unix.SetsockoptInt(ln, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		unix.Bind(ln, &unix.SockaddrInet4{Port: port}), unix.Listen(ln, 4096)); err != nil {
		return errors.Join(err, unix.Close(ln))
	}
	done := make(chan error, 1)
	go func() {
		done <- p.to.Do(func() error { return accept(ln, serve) })
	}()
	err = p.from.Do(client)
	// Ends the server's waiting.
	err = errors.Join(err, unix.Shutdown(ln, unix.SHUT_RDWR), <-done)
	return errors.Join(err, unix.Close(ln))
}

func accept(ln int, serve func(int) error) error {
	for {
		conn, _, err := unix.Accept(ln)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.ECONNABORTED), errors.Is(err, unix.EAGAIN):
			continue
		case err != nil:
			return nil // shut down
		}
		if serve != nil {
			err = errors.Join(unix.SetsockoptInt(conn, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1), serve(conn))
		}
		if err := errors.Join(err, unix.Close(conn)); err != nil {
			return err
		}
	}
}

// connect is for use inside of p.from.
func (p path) connect() (int, error) {
	conn, err := newSocket(unix.SOCK_STREAM)
	if err != nil {
		return -1, err
	}
	if err := errors.Join(unix.SetsockoptInt(conn, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1), unix.Connect(conn, at(p.addr))); err != nil {
		return -1, errors.Join(err, unix.Close(conn))
	}
	return conn, nil
}

func at(addr netip.Addr) *unix.SockaddrInet4 {
	return &unix.SockaddrInet4{Port: port, Addr: addr.As4()}
}

// socketIn is a blocking socket, without the runtime's poller, whose own work
// would be measured too.
func socketIn(ns *lab.NS, kind int) (fd int, err error) {
	err = ns.Do(func() error {
		fd, err = newSocket(kind)
		return err
	})
	if err != nil {
		return -1, fmt.Errorf("socket in %s: %w", ns.Name(), err)
	}
	return fd, nil
}

func newSocket(kind int) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	limit := unix.NsecToTimeval(blocked.Nanoseconds())
	for _, option := range []int{unix.SO_SNDTIMEO, unix.SO_RCVTIMEO} {
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, option, &limit); err != nil {
			return -1, errors.Join(err, unix.Close(fd))
		}
	}
	return fd, nil
}

// cpuSeconds is what all cores together have worked since boot, from
// /proc/stat, whose unit is 1/100 s.
func cpuSeconds() (float64, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("read CPU time: %w", err)
	}
	first, _, _ := strings.Cut(string(b), "\n")
	var sum float64
	// user nice system, not idle and iowait, irq softirq; what comes after is not
	// work of this machine, or counted in user already.
	for i, field := range strings.Fields(first) {
		if !slices.Contains([]int{1, 2, 3, 6, 7}, i) {
			continue
		}
		v, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return 0, fmt.Errorf("read CPU time: %w", err)
		}
		sum += v
	}
	return sum / 100, nil
}
