package lab

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
)

// Requests is how many calls have begun since the server was started, by gRPC
// method: "Txn", "Range", "LeaseGrant", "LeaseKeepAlive", "Watch" and so on. A
// stream counts once, whatever is said on it. The figures are etcd's own.
func (e *Etcd) Requests(ctx context.Context) (map[string]int, error) {
	text, err := scrape(ctx, e.NS, e.URL()+"/metrics")
	if err != nil {
		return nil, fmt.Errorf("read metrics of etcd: %w", err)
	}
	return begun(text)
}

// Metrics is what the member says of itself, as Prometheus reads it.
func (e *Etcd) Metrics(ctx context.Context) ([]byte, error) {
	text, err := scrape(ctx, e.NS, e.URL()+"/metrics")
	if err != nil {
		return nil, fmt.Errorf("read metrics of %s: %w", e.host, err)
	}
	return text, nil
}

// Watchers is how many watches the member carries. The figure is etcd's own.
func (e *Etcd) Watchers(ctx context.Context) (int, error) {
	text, err := scrape(ctx, e.NS, e.URL()+"/metrics")
	if err != nil {
		return 0, fmt.Errorf("read metrics of %s: %w", e.host, err)
	}
	m := regexp.MustCompile(`(?m)^etcd_debugging_mvcc_watcher_total (\d+)$`).FindSubmatch(text)
	if m == nil {
		return 0, fmt.Errorf("read metrics of %s: no etcd_debugging_mvcc_watcher_total in %d bytes", e.host, len(text))
	}
	return strconv.Atoi(string(m[1]))
}

// scrape fetches a page from inside the namespace.
func scrape(ctx context.Context, ns *NS, url string) ([]byte, error) {
	_, page, err := fetch(ctx, ns, url)
	return page, err
}

func fetch(ctx context.Context, ns *NS, url string) (code int, page []byte, err error) {
	transport := &http.Transport{DialContext: ns.Dial}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, nil, err
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	page, err = io.ReadAll(resp.Body)
	return resp.StatusCode, page, err
}

// begun takes the counters of calls out of metrics in text form.
func begun(text []byte) (map[string]int, error) {
	line := regexp.MustCompile(`(?m)^grpc_server_started_total\{[^}]*grpc_method="(\w+)"[^}]*\} (\S+)$`)
	counts := map[string]int{}
	for _, m := range line.FindAllSubmatch(text, -1) {
		n, err := strconv.ParseFloat(string(m[2]), 64)
		if err != nil {
			return nil, fmt.Errorf("read metrics of etcd: %w", err)
		}
		counts[string(m[1])] += int(n)
	}
	if len(counts) == 0 {
		return nil, fmt.Errorf("read metrics of etcd: no grpc_server_started_total in %d bytes", len(text))
	}
	return counts, nil
}
