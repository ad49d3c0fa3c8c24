package api

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// maxBody bounds what a client reads and a server accepts.
const maxBody = 16 << 20

// Client calls a tenured over its unix socket, each time on a connection of
// its own: the plugin lives for one call, and a pool would cost it more than
// the dial. The zero value is not usable; use NewClient. A Client is safe for
// concurrent use.
type Client struct{ socket string }

// NewClient returns a client of the daemon that listens on socket. It opens
// nothing: the calls dial.
func NewClient(socket string) *Client { return &Client{socket} }

// Status fetches the node's status. The error wraps the *net.OpError of a
// failed dial or the context's error.
func (c *Client) Status(ctx context.Context) (*Status, error) {
	var st Status
	if err := c.do(ctx, http.MethodGet, PathStatus, nil, &st, nil); err != nil {
		return nil, err
	}
	return &st, nil
}

// Call posts one CNI request to path (PathCNI or PathIPAM plus the verb).
// The error is of the transport only; the verb's own failure is in the
// Response.
func (c *Client) Call(ctx context.Context, path string, req *Request) (*Response, error) {
	var resp Response
	if err := c.do(ctx, http.MethodPost, path, req, &resp, nil); err != nil {
		return nil, err
	}
	return &resp, nil
}

// Receive posts a request whose answer the daemon takes back unless it has
// arrived where it should go: take is called with it, and when that succeeds
// the daemon gets a receipt. The error is that of take, or as of Call.
func (c *Client) Receive(ctx context.Context, path string, req *Request, take func(*Response) error) error {
	var resp Response
	return c.do(ctx, http.MethodPost, path, req, &resp, func() error { return take(&resp) })
}

// Leave asks the node to give its subnet up. The error is of the transport
// only; a refusal is in the answer.
func (c *Client) Leave(ctx context.Context, l Leave) (*Left, error) {
	var left Left
	if err := c.do(ctx, http.MethodPost, PathLeave, l, &left, nil); err != nil {
		return nil, err
	}
	return &left, nil
}

// EtcdAccess asks how the node reaches etcd. The error is as of Status; a
// daemon that is older than the question has answered 404.
func (c *Client) EtcdAccess(ctx context.Context) (*EtcdAccess, error) {
	var a EtcdAccess
	if err := c.do(ctx, http.MethodGet, PathEtcd, nil, &a, nil); err != nil {
		return nil, err
	}
	return &a, nil
}

// do makes one call. With take a receipt is promised, and sent once it succeeds.
func (c *Client) do(ctx context.Context, method, path string, in, out any, take func() error) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("encode request: %w", err)
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://tenured"+path, body)
	if err != nil {
		return fmt.Errorf("build request %s: %w", path, err)
	}
	req.Close = true
	if take != nil {
		req.Header.Set(HeaderReceipt, "1")
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", c.socket)
	if err != nil {
		return fmt.Errorf("call tenured on %s: %w", c.socket, err)
	}
	defer func() { _ = conn.Close() }()
	// The end of ctx ends reads and writes; its error says more than theirs.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	status, b, err := exchange(conn, req)
	if err != nil {
		return fmt.Errorf("call tenured on %s: %w", c.socket, cmp.Or(ctx.Err(), err))
	}
	if status != http.StatusOK {
		return fmt.Errorf("tenured on %s answered %d %s: %s", c.socket, status, http.StatusText(status), bytes.TrimSpace(b))
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("decode answer of tenured on %s: %w", c.socket, err)
	}
	if take == nil {
		return nil
	}
	// From here on the end of ctx must not come between the answer's use and its
	// receipt: the daemon would take back what is in use.
	if !stop() {
		return fmt.Errorf("call tenured on %s: %w", c.socket, ctx.Err())
	}
	if err := take(); err != nil {
		return err
	}
	_, _ = conn.Write([]byte{Receipt}) // a daemon that has gone keeps what it gave
	return nil
}

// exchange sends one request and reads the whole answer.
func exchange(conn net.Conn, req *http.Request) (status int, body []byte, err error) {
	if err := req.Write(conn); err != nil {
		return 0, nil, fmt.Errorf("send: %w", err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), req)
	if err != nil {
		return 0, nil, fmt.Errorf("receive: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return 0, nil, fmt.Errorf("receive: %w", err)
	}
	return resp.StatusCode, b, nil
}
