package server

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
)

// receiptTimeout is how long a caller may take to pass a result on. Then what
// it was given stays: when in doubt, keep.
const receiptTimeout = time.Second

// errUndelivered says that the caller did not pass on what it was answered.
var errUndelivered = errors.New("no receipt came")

// give serves a use case whose success must arrive.
func give(f Giving, giving *sync.WaitGroup) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		giving.Add(1)
		defer giving.Done()
		req, ok := read[api.Request](w, r)
		if !ok {
			return
		}
		f(r.Context(), req, func(resp *api.Response) error {
			if resp.Error != nil {
				write(w, resp)
				return nil
			}
			return deliver(w, resp, r.Header.Get(api.HeaderReceipt) != "")
		})
	}
}

// deliver answers, and waits until the caller has hung up. It has the answer
// then if a receipt came, where it promised one, or else if it read everything:
// a unix socket closed over unread bytes resets its peer.
func deliver(w http.ResponseWriter, resp *api.Response, promised bool) error {
	body, err := json.Marshal(resp)
	if err != nil {
		return fmt.Errorf("encode answer: %w", err)
	}
	conn, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return fmt.Errorf("take the connection over: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(receiptTimeout)); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	if err := respond(buf, body); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	_, err = conn.Read(make([]byte, 1))
	switch {
	case err == nil, errors.Is(err, os.ErrDeadlineExceeded):
		return nil
	case !errors.Is(err, io.EOF):
		return fmt.Errorf("answer: %w", err)
	case promised:
		return errUndelivered
	}
	return nil
}

// respond writes what net/http would have written.
func respond(w *bufio.ReadWriter, body []byte) error {
	r := http.Response{
		StatusCode: http.StatusOK, ProtoMajor: 1, ProtoMinor: 1, Close: true,
		Header: http.Header{"Content-Type": {"application/json"}},
		Body:   io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
	}
	if err := r.Write(w); err != nil {
		return err
	}
	return w.Flush()
}
