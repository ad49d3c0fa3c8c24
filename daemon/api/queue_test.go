package api_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tenure-cni/tenure/daemon/api"
)

func del(id string) api.Queued {
	return api.Queued{API: api.PathCNI, Request: api.Request{
		ContainerID: id, IfName: "eth0", Config: json.RawMessage(`{"name":"net"}`),
	}}
}

func enqueue(t *testing.T, dir string, all ...api.Queued) {
	t.Helper()
	for _, q := range all {
		if err := api.Enqueue(dir, q); err != nil {
			t.Fatal(err)
		}
	}
}

// drain returns the containers whose DELs came, in order.
func drain(t *testing.T, dir string) []string {
	t.Helper()
	var ids []string
	if err := api.Drain(dir, func(q api.Queued) error {
		ids = append(ids, q.API+" "+q.ContainerID+" "+q.IfName)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return ids
}

func files(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestQueueIsBoundedAndKeepsAttachmentsApart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run", "del")
	if err := api.Drain(dir, nil); err != nil {
		t.Fatalf("a queue that is not there: %v", err)
	}
	other, ipam, network := del("c1"), del("c1"), del("c1")
	other.IfName = "eth1"
	ipam.API = api.PathIPAM
	network.Config = json.RawMessage(`{"name":"other"}`)
	enqueue(t, dir, del("c1"), del("c1"), del("c1"), other, ipam, network, del("c2"))
	if names := files(t, dir); len(names) != 5 {
		t.Errorf("%d files: %q", len(names), names)
	}
	if ids := drain(t, dir); len(ids) != 5 {
		t.Errorf("drained %q", ids)
	}
	if names := files(t, dir); len(names) != 0 {
		t.Errorf("left: %q", names)
	}
}

// TestQueueNameIsNoPath: what a runtime passes never leaves the directory.
func TestQueueNameIsNoPath(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "a", "del")
	enqueue(t, dir, del("../../../x"))
	if names := files(t, root); len(names) != 1 {
		t.Fatalf("written beside the queue: %q", names)
	}
}

func TestDrainKeepsWhatFailed(t *testing.T) {
	dir := t.TempDir()
	enqueue(t, dir, del("c1"), del("c2"))
	broken := errors.New("kernel refused")
	for range 2 { // what an earlier Drain has taken is not forgotten
		err := api.Drain(dir, func(q api.Queued) error {
			if q.ContainerID == "c1" {
				return broken
			}
			return nil
		})
		if !errors.Is(err, broken) || !strings.Contains(err.Error(), "c1") {
			t.Errorf("error %v", err)
		}
	}
	enqueue(t, dir, del("c1")) // the runtime repeats it meanwhile
	if diff := cmp.Diff([]string{"/v1/cni/ c1 eth0"}, drain(t, dir)); diff != "" {
		t.Error(diff)
	}
}

// TestDrainDoesNotLoseARepeatedDEL: it is queued again while the first one is
// being worked on.
func TestDrainDoesNotLoseARepeatedDEL(t *testing.T) {
	dir := t.TempDir()
	enqueue(t, dir, del("c1"))
	if err := api.Drain(dir, func(q api.Queued) error { return api.Enqueue(dir, q) }); err != nil {
		t.Fatal(err)
	}
	if ids := drain(t, dir); len(ids) != 1 {
		t.Errorf("second drain found %q", ids)
	}
}

func TestDrainSetsDamagedFilesAside(t *testing.T) {
	dir := t.TempDir()
	enqueue(t, dir, del("c1"))
	for name, text := range map[string]string{
		"a.json": "", "b.json": `{"api":"/v1/cni/","containerID":"c`, "c.json": `{}`, "d.json": `{"api":"/v1/x/","containerID":"c","config":{}}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	calls := 0
	err := api.Drain(dir, func(api.Queued) error { calls++; return nil })
	if calls != 1 || err == nil || strings.Count(err.Error(), "set aside") != 4 {
		t.Errorf("%d calls, error %v", calls, err)
	}
	if diff := cmp.Diff([]string{"a.damaged", "b.damaged", "c.damaged", "d.damaged"}, files(t, dir)); diff != "" {
		t.Error(diff)
	}
	if ids := drain(t, dir); len(ids) != 0 {
		t.Errorf("damaged files are looked at again: %q", ids)
	}
}

func TestDrainClearsAbandonedTemporaryFiles(t *testing.T) {
	dir := t.TempDir()
	for name, age := range map[string]time.Duration{"new.tmp": 0, "old.tmp": time.Hour} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		then := time.Now().Add(-age)
		if err := os.Chtimes(path, then, then); err != nil {
			t.Fatal(err)
		}
	}
	drain(t, dir)
	if diff := cmp.Diff([]string{"new.tmp"}, files(t, dir)); diff != "" {
		t.Error(diff)
	}
}

func TestEnqueueRefusedLeavesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "del")
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := api.Enqueue(dir, del("c1")); err == nil {
		t.Fatal("queued into a file")
	}
	if err := api.Drain(dir, nil); err == nil {
		t.Fatal("drained a file")
	}
}
