package api

import (
	"bytes"
	"encoding/json"
	"testing"
)

// FuzzDecodeQueued: the file of a queued DEL. What is accepted can be done, and is
// the same once written and read again, under the same name.
func FuzzDecodeQueued(f *testing.F) {
	for _, seed := range []string{
		`{"api":"/v1/cni/","containerID":"c1","netns":"/run/netns/x","ifName":"eth0","args":"K8S_POD_NAME=web-0","path":"/opt/cni/bin","config":{"cniVersion":"1.0.0","name":"tenure","type":"tenure"}}`,
		`{"api":"/v1/ipam/","containerID":"c1","ifName":"eth0","config":{"name":"n","ipam":{"type":"tenure-ipam"}}}`,
		"", "{}", "null", `{"api":"/v1/cni/","containerID":"c1","config":null}`, `{"api":"/v1/cni/","containerID":"c1","config":7}`, `{"api":"/v1/cni/","containerID":"c1","config":""}`,
		`{"api":"/v1/leave","containerID":"c1","config":{}}`, `{"api":"/v1/cni/","containerID":"c1","config":{"name":"<\u2028>"}}`, `{"api":"/v1/cni/"`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		q, err := decodeQueued(b)
		if err != nil {
			if len(err.Error()) > 500 {
				t.Errorf("an error of %d bytes: %.200s", len(err.Error()), err)
			}
			return
		}
		if q.API != PathCNI && q.API != PathIPAM || q.ContainerID == "" {
			t.Errorf("%q is accepted: %+v", b, q)
		}
		text, err := json.Marshal(q)
		if err != nil {
			t.Fatalf("%q cannot be written: %v", b, err)
		}
		again, err := decodeQueued(text)
		if err != nil || queueName(again) != queueName(q) {
			t.Fatalf("%q is %q, and that is %+v (%v)", b, text, again, err)
		}
		if twice, err := json.Marshal(again); err != nil || !bytes.Equal(twice, text) {
			t.Errorf("%q is %q, and that is %q (%v)", b, text, twice, err)
		}
	})
}

// FuzzObjects: what goes over the socket is the same once written and read again.
func FuzzObjects(f *testing.F) {
	for _, seed := range []string{
		`{"containerID":"c1","netns":"/n","ifName":"eth0","args":"IP=10.5.1.9","path":"/p","config":{"name":"n"}}`,
		`{"result":{"cniVersion":"1.0.0"},"error":{"cniVersion":"1.0.0","code":11,"msg":"m","details":"d"}}`,
		`{"version":"v","node":"n1","uid":"u","state":"held","ready":true,"lease":{"id":"7","ttlSeconds":30,"remainingSeconds":1.5,"epoch":7},"subnet":"10.5.1.0/24","peers":[{"node":"n2","state":"programmed"}],"problems":[{"code":"etcd-unreachable","severity":"warning","since":"2026-07-01T10:00:00Z"}]}`,
		"null", "{}", "[]", "7", `{"config":null}`, `{"lease":null,"problems":null}`, `{"since":"x"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		same[Request](t, b)
		same[Response](t, b)
		same[Status](t, b)
		same[Leave](t, b)
		same[Left](t, b)
		same[EtcdAccess](t, b)
	})
}

func same[T any](t *testing.T, b []byte) {
	t.Helper()
	var v, again T
	if json.Unmarshal(b, &v) != nil {
		return
	}
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatalf("%q as %T cannot be written: %v", b, v, err)
	}
	if err := json.Unmarshal(text, &again); err != nil {
		t.Fatalf("%q as %T is %q: %v", b, v, text, err)
	}
	if twice, err := json.Marshal(again); err != nil || !bytes.Equal(twice, text) {
		t.Errorf("%q as %T is %q, and that is %q (%v)", b, v, text, twice, err)
	}
}
