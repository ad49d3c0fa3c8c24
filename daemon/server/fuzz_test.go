package server

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/tenure-cni/tenure/daemon/api"
)

// FuzzBodies: a body is what the handler gets, or it is refused in few words.
func FuzzBodies(f *testing.F) {
	for _, seed := range []string{
		`{"containerID":"c1","netns":"/n","ifName":"eth0","args":"IP=10.5.1.9","path":"/p","config":{"name":"n","cni.dev/valid-attachments":[]}}`,
		"", "{}", "null", "[]", `{"containerID":7}`, `{"config":`, `{"containerID":"c1"} x`, "\xff", `{"containerID":"\ud800"}`, `{"force":true}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		body[api.Request](t, b)
		body[api.Leave](t, b)
	})
}

func body[Q any](t *testing.T, b []byte) {
	t.Helper()
	var got *Q
	w := httptest.NewRecorder()
	handler(func(_ context.Context, q *Q) *api.Response { got = q; return &api.Response{} })(w, httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(b)))
	var want Q
	wrong := json.Unmarshal(b, &want) != nil
	switch {
	case wrong && (w.Code != http.StatusBadRequest || got != nil || w.Body.Len() > 500):
		t.Errorf("%q: %d %.600q, handed on %v", b, w.Code, w.Body, got)
	case !wrong && (w.Code != http.StatusOK || got == nil):
		t.Errorf("%q: %d %.600q, handed on %v", b, w.Code, w.Body, got)
	}
}
