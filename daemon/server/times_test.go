package server

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/tenure-cni/tenure/daemon/api"
)

func TestTimes(t *testing.T) {
	times := NewTimes()
	synctest.Test(t, func(*testing.T) {
		add := times.Verb("ADD", func(context.Context, *api.Request) *api.Response {
			times.Took("ADD", PartLedger, time.Now().Add(-2*time.Millisecond))
			<-time.After(6 * time.Millisecond)
			return &api.Response{Result: []byte("1")}
		})
		del := times.Verb("DEL", func(context.Context, *api.Request) *api.Response {
			return &api.Response{Error: &types.Error{Code: 100}}
		})
		del(t.Context(), &api.Request{})
		times.Giving("ADD", func(_ context.Context, _ *api.Request, deliver func(*api.Response) error) {
			_ = deliver(&api.Response{Error: &types.Error{Code: 11}})
		})(t.Context(), &api.Request{}, func(*api.Response) error { return nil })
		for range 2 {
			if got := add(t.Context(), &api.Request{}); string(got.Result) != "1" {
				t.Errorf("the timed verb answers %q", got.Result)
			}
		}
	})
	h, err := metricsMux(Sources{Status: okStatus, Times: times})
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, want := range []string{
		`tenure_cni_seconds_sum{part="call",verb="ADD"} 0.012`,
		`tenure_cni_seconds_count{part="call",verb="ADD"} 3`,
		`tenure_cni_calls_total{code="0",verb="ADD"} 2`,
		`tenure_cni_calls_total{code="11",verb="ADD"} 1`,
		`tenure_cni_calls_total{code="100",verb="DEL"} 1`,
		`tenure_cni_seconds_sum{part="ledger",verb="ADD"} 0.004`,
		`tenure_cni_seconds_bucket{part="ledger",verb="ADD",le="0.001"} 0`,
		`tenure_cni_seconds_bucket{part="ledger",verb="ADD",le="0.0025"} 2`,
	} {
		if !strings.Contains(w.Body.String(), want+"\n") {
			t.Errorf("the metrics lack %s:\n%s", want, w.Body)
		}
	}
}
