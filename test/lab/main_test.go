package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// ownerEnv makes the test binary build a lab and hang, for the tests that kill
// a lab's owner.
const ownerEnv = "TENURE_LAB_TEST_OWNER"

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "tenured" {
		if err := stand(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if os.Getenv(ownerEnv) != "" {
		if err := own(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// own builds a lab with a program in it, in a control group as a runtime makes
// them, prints its id and the program's pid
// and waits to be killed.
func own() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	l, err := New(ctx, Options{})
	if err != nil {
		return err
	}
	n, err := l.AddNode(ctx, "n1")
	if err != nil {
		return err
	}
	p, err := l.spawn(n.Name(), n.LogFile(), "tail", "-f", "/dev/null")
	if err != nil {
		return err
	}
	if err := group(n, p.Pid()); err != nil {
		return err
	}
	fmt.Println(l.ID(), l.Dir(), p.Pid())
	<-ctx.Done()
	return l.Close()
}

// group puts a process into a control group of the node, in one hierarchy.
func group(n *Node, pid int) error {
	// Version 2 has one; of version 1 any will do that needs no settings first.
	root := cgroupDir
	if _, err := os.Stat(filepath.Join(root, "cgroup.procs")); err != nil {
		root = filepath.Join(root, "freezer")
	}
	inner := filepath.Join(root, n.Cgroup(), "inner")
	if err := os.MkdirAll(inner, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(inner, "cgroup.procs"), fmt.Append(nil, pid), 0)
}

// newLab makes a lab without binaries; labtest would be an import cycle.
func newLab(t *testing.T, opts Options) (*Lab, context.Context) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs root and network namespaces")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	l, err := New(ctx, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close lab: %v", err)
		}
	})
	return l, ctx
}

func addNode(ctx context.Context, t *testing.T, l *Lab, name string) *Node {
	t.Helper()
	n, err := l.AddNode(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
