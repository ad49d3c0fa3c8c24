package server

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/tenure-cni/tenure/daemon/api"
)

// deliveries serves ADD with an answer and tells what became of each.
func deliveries(t *testing.T, answer *api.Response) (socket string, delivered <-chan error) {
	t.Helper()
	came := make(chan error, 1)
	socket = filepath.Join(t.TempDir(), "tenured.sock")
	serveFor(t, listen(t, socket), Handlers{Status: okStatus, Add: func(_ context.Context, _ *api.Request, deliver func(*api.Response) error) {
		came <- deliver(answer)
	}})
	return socket, came
}

// TestWhatDoesNotArriveIsTold: the plugin may be killed at any moment between
// the daemon's answer and its own.
func TestWhatDoesNotArriveIsTold(t *testing.T) {
	t.Parallel()
	const promise = api.HeaderReceipt + ": 1\r\n"
	for name, c := range map[string]struct {
		header  string
		caller  func(*testing.T, net.Conn)
		arrives bool
	}{
		"killed before it read":                  {"", readSome, false},
		"killed before it read, promised":        {promise, readSome, false},
		"read all":                               {"", readAnswer, true},
		"killed after it read all, promised":     {promise, readAnswer, false},
		"gave its receipt":                       {promise, func(t *testing.T, c net.Conn) { readAnswer(t, c); send(t, c, string(api.Receipt)) }, true},
		"says nothing for long, promised":        {promise, func(t *testing.T, c net.Conn) { readAnswer(t, c); readEnd(t, c) }, true},
		"keeps its connection, promises nothing": {"", func(t *testing.T, c net.Conn) { readAnswer(t, c); readEnd(t, c) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			socket, delivered := deliveries(t, &api.Response{Result: json.RawMessage(`{"ips":[]}`)})
			conn, err := net.Dial("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			send(t, conn, "POST "+api.PathCNI+"add HTTP/1.1\r\nHost: tenured\r\n"+c.header+"Content-Length: 13\r\n\r\n"+`{"config":{}}`)
			c.caller(t, conn)
			if err := conn.Close(); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-delivered:
				if (err == nil) != c.arrives {
					t.Errorf("delivery: %v", err)
				}
			case <-time.After(patience):
				t.Error("no end of the delivery")
			}
		})
	}
}

// TestReceive: a caller that passes the answer on gets to keep what it was
// given; one that cannot does not; a failure needs no receipt.
func TestReceive(t *testing.T) {
	t.Parallel()
	full := io.ErrShortWrite
	for name, c := range map[string]struct {
		answer    *api.Response
		take      error
		delivered bool
	}{
		"passed on":     {&api.Response{Result: json.RawMessage(`{}`)}, nil, true},
		"not passed on": {&api.Response{Result: json.RawMessage(`{}`)}, full, false},
		"a failure":     {&api.Response{Error: &types.Error{Code: 100, Msg: "no free address"}}, full, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			socket, delivered := deliveries(t, c.answer)
			err := api.NewClient(socket).Receive(t.Context(), api.PathCNI+"add", &api.Request{Config: json.RawMessage(`{}`)},
				func(*api.Response) error { return c.take })
			if !errors.Is(err, c.take) {
				t.Errorf("Receive: %v, want %v", err, c.take)
			}
			if err := <-delivered; (err == nil) != c.delivered {
				t.Errorf("delivery: %v", err)
			}
		})
	}
}

// TestReceiveEndsBeforeUse: an answer that came too late is not used, so that
// the daemon is right to take it back.
func TestReceiveEndsBeforeUse(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	socket := filepath.Join(t.TempDir(), "tenured.sock")
	delivered := make(chan error, 1)
	serveFor(t, listen(t, socket), Handlers{Status: okStatus, Add: func(_ context.Context, _ *api.Request, deliver func(*api.Response) error) {
		cancel()
		delivered <- deliver(&api.Response{Result: json.RawMessage(`{}`)})
	}})
	err := api.NewClient(socket).Receive(ctx, api.PathCNI+"add", &api.Request{Config: json.RawMessage(`{}`)}, func(*api.Response) error {
		t.Error("the answer was used")
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Receive: %v", err)
	}
	if err := <-delivered; err == nil {
		t.Error("the daemon believes that its answer arrived")
	}
}

func send(t *testing.T, c net.Conn, s string) {
	t.Helper()
	if _, err := io.WriteString(c, s); err != nil {
		t.Error(err)
	}
}

// readSome leaves most of the answer unread.
func readSome(t *testing.T, c net.Conn) {
	t.Helper()
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
}

func readAnswer(t *testing.T, c net.Conn) {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = resp.Body.Close() }()
	var got api.Response
	if err := json.NewDecoder(resp.Body).Decode(&got); err != nil || len(got.Result) == 0 || !resp.Close {
		t.Errorf("answer %+v, close %t: %v", got, resp.Close, err)
	}
}

// readEnd reads until the other side hangs up.
func readEnd(t *testing.T, c net.Conn) {
	t.Helper()
	if _, err := io.Copy(io.Discard, c); err != nil {
		t.Error(err)
	}
}
