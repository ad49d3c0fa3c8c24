package field

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestE4 is kmesh #150, Azure CNI #918 and cluster-network-operator #1472: a
// file that others read is replaced by an empty or a half one, and the node
// starts no pods. Right is: somebody who reads all the time sees only the old
// file or the new one, each complete, whether the installer is killed, runs
// twice at once, has no space or gets broken sources; nothing that is being
// written has a name that a runtime reads.
func TestE4(t *testing.T) {
	if testing.Short() {
		t.Skip("needs the programs of make build, and root for a small file system")
	}
	t.Run("installer killed", killedInstaller)
	t.Run("daemon killed", killedDaemon)
}

func killedInstaller(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	host := newScratch(t, "")
	// The source is small, so that a killed installer has done some of it.
	old, young := programs(t, t.TempDir(), "tools/loopback", "old"), programs(t, t.TempDir(), "tools/loopback", "new")
	began := time.Now()
	host.mustInstall(ctx, t, old, "--prefix=/usr")
	took := time.Since(began)
	complete := eachOf(t, host.root)
	other := newScratch(t, "")
	other.mustInstall(ctx, t, young, "--prefix=/usr/local")
	for name, content := range eachOf(t, other.root) {
		complete[name] = append(complete[name], content...)
	}
	// The prefix changes the unit and not where the two plugins are.
	watched := []string{"opt/cni/bin/tenure", "opt/cni/bin/tenure-ipam", "etc/systemd/system/tenured.service", "etc/tenure/tenured.yaml"}
	stop := poll(ctx, t, func() error {
		for _, name := range watched {
			b, err := os.ReadFile(filepath.Join(host.root, name))
			if err != nil {
				return err
			}
			if !slices.ContainsFunc(complete[name], func(c []byte) bool { return bytes.Equal(b, c) }) {
				return fmt.Errorf("%s: %d bytes that are neither the old nor the new file", name, len(b))
			}
		}
		return onlyKnown(host.root, complete)
	})

	killed := 0
	variants := [][]string{{young, "--prefix=/usr/local"}, {old, "--prefix=/usr"}}
	for i := range 100 {
		v := variants[i%2]
		cmd := host.install(ctx, t, v[0], v[1])
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		timer := time.AfterFunc(time.Duration(rand.Int64N(int64(took))), func() { _ = cmd.Process.Kill() })
		if cmd.Wait() != nil {
			killed++
		}
		timer.Stop()
	}
	t.Logf("%d of 100 installers were killed before their end", killed)
	if killed == 0 || killed == 100 {
		t.Error("they were not killed in the middle of their work")
	}

	// Two at once, and each ends well.
	for range 10 {
		var both sync.WaitGroup
		for _, v := range variants {
			both.Go(func() {
				if out, err := host.install(ctx, t, v[0], v[1]).CombinedOutput(); err != nil {
					t.Errorf("two at once: %v\n%s", err, out)
				}
			})
		}
		both.Wait()
	}

	broken := programs(t, t.TempDir(), "tools/loopback", "broken")
	for what, content := range map[string][]byte{"empty": nil, "half": read(t, filepath.Join(old, "tenure"))[:1<<20], "a script": []byte("#!/bin/sh\n")} {
		if err := os.WriteFile(filepath.Join(broken, "tenure"), content, 0o755); err != nil {
			t.Fatal(err)
		}
		if out, err := host.install(ctx, t, broken).CombinedOutput(); err == nil || !bytes.Contains(out, []byte("no complete program")) {
			t.Errorf("a source that is %s: %v\n%s", what, err, out)
		}
	}
	stop()
	// What is left of a killed one is gone with the next that ends.
	host.mustInstall(ctx, t, young, "--prefix=/usr/local")
	host.mustInstall(ctx, t, old, "--prefix=/usr")
	for name := range eachOf(t, host.root) {
		if complete[name] == nil {
			t.Errorf("%s is left", name)
		}
	}
}

// killedDaemon: the CNI configuration is the daemon's to write.
func killedDaemon(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.Born(ctx, t, cluster.Network, "n1")
	n := c.Nodes[0]
	dir := filepath.Join(n.Dir(), "net.d")
	file := filepath.Join(dir, "10-tenure.conflist")
	sockets := []string{n.Socket, filepath.Join(n.RunDir, "other.sock")}
	stop := poll(ctx, t, func() error {
		b, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		var list struct {
			Plugins []struct{ Tenure struct{ Socket string } }
		}
		if err := json.Unmarshal(b, &list); err != nil || len(list.Plugins) != 2 || !slices.Contains(sockets, list.Plugins[0].Tenure.Socket) {
			return fmt.Errorf("the configuration is %q: %w", b, err)
		}
		return onlyKnown(dir, map[string][][]byte{"10-tenure.conflist": nil})
	})
	began := time.Now()
	cluster.Start(ctx, t, n)
	took := time.Since(began)
	n.Kill()
	written := 0
	for i := range 25 {
		socket := sockets[i%2]
		before, _ := os.ReadFile(file)
		if err := n.Start(ctx, "--socket="+socket, "--cni-conf-file="+file); err != nil {
			t.Fatal(err)
		}
		wait, cancel := context.WithTimeout(ctx, time.Duration(rand.Int64N(int64(2*took))))
		_ = lab.Eventually(wait, "time to kill it", func() error { return errors.New("not yet") })
		cancel()
		n.Kill()
		if now, _ := os.ReadFile(file); !bytes.Equal(now, before) {
			written++
		}
	}
	if err := n.Start(ctx, "--cni-conf-file="+file); err != nil {
		t.Fatal(err)
	}
	cluster.WaitState(ctx, t, n, api.StateHeld)
	cluster.Eventually(ctx, t, 5*time.Second, "the configuration is there", func() error {
		b, err := os.ReadFile(file)
		if err == nil && !bytes.Contains(b, []byte(n.Socket)) {
			err = fmt.Errorf("it is %q", b)
		}
		return err
	})
	stop()
	t.Logf("%d of 25 daemons were killed after they had written it", written)
	if written == 0 || written == 25 {
		t.Error("they were not killed about when they write it")
	}
}

// poll runs probe without pause until the returned function is called, which
// reports the first failure.
func poll(ctx context.Context, t *testing.T, probe func() error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			if err := probe(); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// eachOf reads all files below root, by their names there.
func eachOf(t *testing.T, root string) map[string][][]byte {
	t.Helper()
	all := map[string][][]byte{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(root, path)
		all[name] = append(all[name], read(t, path))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// onlyKnown: nothing else has a name that a runtime or systemd reads.
func onlyKnown(root string, known map[string][][]byte) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // renamed meanwhile
		}
		if err != nil || d.IsDir() {
			return err
		}
		name, _ := filepath.Rel(root, path)
		_, ok := known[name]
		if !ok && slices.Contains([]string{".conf", ".conflist", ".json", ".service", ".yaml"}, filepath.Ext(path)) {
			return fmt.Errorf("%s can be read by others", path)
		}
		return nil
	})
}
