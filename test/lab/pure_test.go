package lab

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestParsePing(t *testing.T) {
	const reply = "64 bytes from 192.0.2.12: icmp_seq=%s ttl=64 time=0.05 ms\n"
	run := func(sent string, answered ...string) string {
		var b strings.Builder
		b.WriteString("PING 192.0.2.12 (192.0.2.12) 56(84) bytes of data.\n")
		for _, seq := range answered {
			b.WriteString(strings.Replace(reply, "%s", seq, 1))
		}
		b.WriteString("\n--- 192.0.2.12 ping statistics ---\n" + sent + " packets transmitted, x received\n")
		return b.String()
	}
	for name, tc := range map[string]struct {
		in   string
		want PingResult
	}{
		"all":            {run("3", "1", "2", "3"), PingResult{3, 3, 0}},
		"hole":           {run("6", "1", "4", "6"), PingResult{6, 3, 20 * time.Millisecond}},
		"last under way": {run("3", "1", "2"), PingResult{2, 2, 0}},
		"dead end":       {run("4", "1", "2"), PingResult{4, 2, 20 * time.Millisecond}},
		"dead start":     {run("3", "3"), PingResult{3, 1, 20 * time.Millisecond}},
		"duplicate":      {run("2", "1", "1", "2"), PingResult{2, 2, 0}},
		"silence":        {run("5"), PingResult{5, 0, 50 * time.Millisecond}},
	} {
		if got := parsePing(strings.NewReader(tc.in)).result(10 * time.Millisecond); got != tc.want {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}
}

func TestFlags(t *testing.T) {
	l := &Lab{endpoints: []string{"http://192.0.2.2:2379"}}
	n := &Node{NS: &NS{lab: l}, Host: "n1", RunDir: "/r", StateDir: "/s", Socket: "/r/sock"}
	for _, tc := range []struct {
		args   []string
		absent []string
	}{
		{nil, nil},
		{[]string{"--node-name", "x"}, []string{"--node-name=n1"}},
		{[]string{"--public-ip=192.0.2.9"}, []string{"--iface=eth0"}},
		{[]string{"--etcd-embedded"}, []string{"--etcd-endpoints=http://192.0.2.2:2379"}},
		{[]string{"--run-dir=/x"}, []string{"--run-dir=/r"}},
	} {
		all := []string{
			"--node-name=n1", "--run-dir=/r", "--state-dir=/s", "--socket=/r/sock",
			"--metrics-listen=", "--iface=eth0", "--etcd-endpoints=http://192.0.2.2:2379",
		}
		want := slices.DeleteFunc(all, func(f string) bool { return slices.Contains(tc.absent, f) })
		if got := n.flags(tc.args); !slices.Equal(got, want) {
			t.Errorf("flags(%q) = %q, want %q", tc.args, got, want)
		}
	}
}

func TestEventually(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := errors.New("not yet")
		calls := 0
		if err := Eventually(context.Background(), "three", func() error {
			if calls++; calls < 3 {
				return cause
			}
			return nil
		}); err != nil || calls != 3 {
			t.Errorf("third time: %v after %d calls", err, calls)
		}
		began := time.Now()
		err := Eventually(context.Background(), "never so", func() error { return cause })
		if !errors.Is(err, cause) || !strings.Contains(err.Error(), "never so") || time.Since(began) != defaultWait {
			t.Errorf("never: %v after %s", err, time.Since(began))
		}
	})
}

func TestParseResultConvertsOldVersions(t *testing.T) {
	got, err := parseResult([]byte(`{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.5.1.2/24"}]}`))
	if err != nil || got.IPs[0].Address.String() != "10.5.1.2/24" {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := parseResult([]byte(`{"cniVersion":"1.1.0"}`)); err == nil {
		t.Error("a result without address was accepted")
	}
}

func TestBegun(t *testing.T) {
	const text = `# HELP grpc_server_started_total Total number of RPCs started.
grpc_server_started_total{grpc_method="Txn",grpc_service="etcdserverpb.KV",grpc_type="unary"} 12
grpc_server_started_total{grpc_method="Watch",grpc_service="etcdserverpb.Watch",grpc_type="bidi_stream"} 1.5e+06
grpc_server_msg_sent_total{grpc_method="Txn",grpc_service="etcdserverpb.KV",grpc_type="unary"} 99
`
	got, err := begun([]byte(text))
	if want := map[string]int{"Txn": 12, "Watch": 1500000}; err != nil || !maps.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	if got, err := begun([]byte("up 1\n")); err == nil {
		t.Errorf("nothing of etcd's in it, and the answer is %v", got)
	}
}

func TestVerbTimes(t *testing.T) {
	got, err := verbTimes([]byte(`# TYPE tenure_cni_seconds histogram
tenure_cni_seconds_bucket{part="call",verb="ADD",le="0.0005"} 0
tenure_cni_seconds_bucket{part="call",verb="ADD",le="+Inf"} 2
tenure_cni_seconds_sum{part="call",verb="ADD"} 0.0125
tenure_cni_seconds_count{part="call",verb="ADD"} 2
tenure_cni_seconds_sum{part="ledger",verb="DEL"} 5e-05
tenure_cni_seconds_count{part="ledger",verb="DEL"} 1
tenure_state{state="held"} 1
`))
	if err != nil {
		t.Fatal(err)
	}
	want := map[VerbPart]Took{
		{"ADD", "call"}:   {2, 12500 * time.Microsecond},
		{"DEL", "ledger"}: {1, 50 * time.Microsecond},
	}
	if !maps.Equal(got, want) {
		t.Errorf("read %v, want %v", got, want)
	}
	if since := want[VerbPart{"ADD", "call"}].Since(Took{1, 12 * time.Millisecond}); since != (Took{1, 500 * time.Microsecond}) {
		t.Errorf("since an earlier look: %v", since)
	}
}
