package field

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/test/cluster"
)

// TestE5 is calico #8932, kube-ovn #4470 and multus #1213: a plugin is replaced
// while pods start. The copy onto the live file fails with "text file busy", or
// a runtime executes half of it. Right is: a hundred loops that execute the
// plugin see no failure while it is replaced again and again, from the same and
// from another file system; without space for it the old one stays, whole.
func TestE5(t *testing.T) {
	if testing.Short() {
		t.Skip("needs the programs of make build, and root for a small file system")
	}
	ctx := cluster.Context(t, time.Minute)
	host := newScratch(t, "")
	versions := []string{programs(t, t.TempDir(), "tenure", "old"), programs(t, smallDisk(t, 64), "tenure", "new")}
	host.mustInstall(ctx, t, versions[0], "--plugins-only")
	plugin := filepath.Join(host.root, "opt/cni/bin/tenure")

	loops, end := context.WithCancel(ctx)
	defer end()
	var runs atomic.Int64
	var once sync.Once
	var failure error
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			for loops.Err() == nil {
				if out, err := exec.Command(plugin, "--version").CombinedOutput(); err != nil {
					once.Do(func() { failure = fmt.Errorf("%w: %s", err, out) })
					return
				}
				runs.Add(1)
			}
		})
	}
	const replacements = 25
	for i := range replacements {
		host.mustInstall(ctx, t, versions[(i+1)%2], "--plugins-only")
		before := runs.Load()
		cluster.Eventually(ctx, t, 10*time.Second, "the plugin is executed", func() error {
			if runs.Load() == before && loops.Err() == nil {
				return errors.New("not yet")
			}
			return nil
		})
	}
	end()
	all.Wait()
	if failure != nil {
		t.Errorf("an execution failed while the plugin was replaced: %v", failure)
	}
	t.Logf("%d executions during %d replacements", runs.Load(), replacements)

	t.Run("no space", func(t *testing.T) {
		full := newScratch(t, smallDisk(t, 12))
		full.mustInstall(ctx, t, versions[0], "--plugins-only")
		plugin := filepath.Join(full.root, "opt/cni/bin/tenure")
		old := read(t, plugin)
		fill(t, full.root)
		if out, err := full.install(ctx, t, versions[1], "--plugins-only").CombinedOutput(); err == nil || !bytes.Contains(out, []byte("no space left")) {
			t.Errorf("an installation without space: %v\n%s", err, out)
		}
		if !bytes.Equal(read(t, plugin), old) {
			t.Error("the plugin is not what it was")
		}
		if out, err := exec.Command(plugin, "--version").CombinedOutput(); err != nil {
			t.Errorf("the plugin cannot be executed: %v: %s", err, out)
		}
	})
}

// scratch is a directory that stands for a host's root.
type scratch struct{ root string }

func newScratch(t *testing.T, dir string) scratch {
	t.Helper()
	if dir == "" {
		dir = t.TempDir()
	}
	return scratch{dir}
}

// install is tenurectl install of the programs in from.
func (s scratch) install(ctx context.Context, t *testing.T, from string, args ...string) *exec.Cmd {
	t.Helper()
	return exec.CommandContext(ctx, filepath.Join(binDir(t), "tenurectl"), append([]string{"install", "--root", s.root, "--from", from}, args...)...)
}

func (s scratch) mustInstall(ctx context.Context, t *testing.T, from string, args ...string) {
	t.Helper()
	if out, err := s.install(ctx, t, from, args...).CombinedOutput(); err != nil {
		t.Fatalf("tenurectl install: %v\n%s", err, out)
	}
}

// programs makes a directory with the four programs, each the named one of
// bin/ with a mark behind its end, which the kernel does not mind.
func programs(t *testing.T, dir, program, mark string) string {
	t.Helper()
	dir = filepath.Join(dir, mark)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	b := append(slices.Clip(read(t, filepath.Join(binDir(t), program))), mark...)
	for _, name := range []string{"tenure", "tenure-ipam", "tenured", "tenurectl"} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// smallDisk is a file system of that many MiB.
func smallDisk(t *testing.T, size int) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm", size)); err != nil {
		t.Fatalf("mount a small file system (are you root?): %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill leaves no space on the file system of dir.
func fill(t *testing.T, dir string) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "ballast"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	block := make([]byte, 1<<16)
	for err == nil {
		_, err = f.Write(block)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
