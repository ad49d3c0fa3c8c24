package lab

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Ping sends one echo request and returns nil when the answer came within a
// second.
func Ping(ctx context.Context, from Execer, to netip.Addr) error {
	_, err := from.Exec(ctx, "ping", "-n", "-q", "-c", "1", "-W", "1", to.String())
	return err
}

// WaitPing waits until an echo request is answered.
func WaitPing(ctx context.Context, from Execer, to netip.Addr) error {
	return Eventually(ctx, fmt.Sprintf("answer from %s", to), func() error { return Ping(ctx, from, to) })
}

// WaitNoPing waits until an echo request stays unanswered for a second.
func WaitNoPing(ctx context.Context, from Execer, to netip.Addr) error {
	return Eventually(ctx, fmt.Sprintf("silence of %s", to), func() error {
		if err := Ping(ctx, from, to); err == nil {
			return fmt.Errorf("%s still answers", to)
		}
		return ctx.Err()
	})
}

// Pinger is a ping that runs until Stop.
type Pinger struct {
	proc     *Process
	interval time.Duration
	to       netip.Addr
	parsed   chan pingCount
}

// PingResult is what a Pinger saw.
type PingResult struct {
	Sent, Received int
	// LongestGap is the longest run of unanswered requests times the interval;
	// 0 when none is missing.
	LongestGap time.Duration
}

// Lost is how many requests stayed without an answer.
func (r PingResult) Lost() int { return r.Sent - r.Received }

// String is one line for people.
func (r PingResult) String() string {
	return fmt.Sprintf("%d sent, %d answered, longest gap %s", r.Sent, r.Received, r.LongestGap)
}

// StartPing pings from a namespace every interval, until Stop or the end of
// the lab.
func (n *NS) StartPing(to netip.Addr, interval time.Duration) (*Pinger, error) {
	cmd := n.lab.command(context.Background(), n.name,
		"ping", "-n", "-i", strconv.FormatFloat(interval.Seconds(), 'f', 3, 64), to.String())
	reader, writer := io.Pipe()
	cmd.Stdout, cmd.Stderr = writer, writer
	proc, err := n.lab.track(cmd)
	if err != nil {
		return nil, err
	}
	p := &Pinger{proc: proc, interval: interval, to: to, parsed: make(chan pingCount, 1)}
	go func() {
		<-proc.Done()
		_ = writer.Close()
	}()
	go func() { p.parsed <- parsePing(reader) }()
	return p, nil
}

// Stop ends the ping and says what it saw.
func (p *Pinger) Stop() (PingResult, error) {
	// ping prints its summary on SIGINT.
	if err := p.proc.Signal(unix.SIGINT); err != nil {
		return PingResult{}, fmt.Errorf("stop ping to %s: %w", p.to, err)
	}
	c := <-p.parsed
	if c.sent == 0 {
		return PingResult{}, fmt.Errorf("ping to %s printed no summary: %s", p.to, c.rest)
	}
	return c.result(p.interval), nil
}

// pingCount is what ping printed: which sequence numbers were answered.
type pingCount struct {
	answered map[int]bool
	sent     int
	rest     string // lines that are neither answer nor summary
}

func parsePing(r io.Reader) pingCount {
	// Bound here and not as a package variable; one compile per ping is cheap.
	answer := regexp.MustCompile(`bytes from .*icmp_seq=(\d+) `)
	summary := regexp.MustCompile(`^(\d+) packets transmitted`)
	c := pingCount{answered: make(map[int]bool)}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if m := answer.FindStringSubmatch(lines.Text()); m != nil {
			seq, _ := strconv.Atoi(m[1])
			c.answered[seq] = true
		} else if m := summary.FindStringSubmatch(lines.Text()); m != nil {
			c.sent, _ = strconv.Atoi(m[1])
		} else if len(c.rest) < 1000 {
			c.rest = strings.TrimSpace(c.rest + "\n" + lines.Text())
		}
	}
	_, _ = io.Copy(io.Discard, r)
	return c
}

func (c pingCount) result(interval time.Duration) PingResult {
	res := PingResult{Sent: c.sent, Received: len(c.answered)}
	if !c.answered[res.Sent] && c.answered[res.Sent-1] {
		res.Sent-- // the last request was still under way
	}
	longest, run := 0, 0
	for seq := 1; seq <= res.Sent; seq++ {
		run++
		if c.answered[seq] {
			run = 0
		}
		longest = max(longest, run)
	}
	res.LongestGap = time.Duration(longest) * interval
	return res
}
