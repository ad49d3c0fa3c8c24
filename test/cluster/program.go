package cluster

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/tenure-cni/tenure/test/lab"
)

// Ran is what a program of the product did.
type Ran struct {
	// Code is its exit code, Out its standard output.
	Code int
	Out  string
	// Said is what it wrote to standard error; empty when it ended with 0.
	Said string
}

// String is for failure messages.
func (r Ran) String() string { return fmt.Sprintf("exit code %d: %s%s", r.Code, r.Out, r.Said) }

// Run runs a program of the product (tenured, tenurectl) in a namespace.
func Run(ctx context.Context, t testing.TB, in lab.Execer, program string, args ...string) Ran {
	t.Helper()
	return run(ctx, t, in, nil, program, args...)
}

// RunEnv is Run with more in the environment, each as NAME=value.
func RunEnv(ctx context.Context, t testing.TB, in lab.Execer, env []string, program string, args ...string) Ran {
	t.Helper()
	return run(ctx, t, in, env, program, args...)
}

func run(ctx context.Context, t testing.TB, in lab.Execer, env []string, program string, args ...string) Ran {
	t.Helper()
	bin, err := lab.FindBin()
	if err != nil {
		t.Fatal(err)
	}
	argv := append(append([]string{}, env...), append([]string{filepath.Join(bin, program)}, args...)...)
	out, err := in.Exec(ctx, "env", argv...)
	var exit *exec.ExitError
	switch {
	case err == nil:
		return Ran{Out: out}
	case errors.As(err, &exit) && exit.Exited():
		return Ran{Code: exit.ExitCode(), Out: out, Said: err.Error()}
	}
	t.Fatal(err)
	return Ran{}
}

// Exec runs any program in a namespace; it has to succeed.
func Exec(ctx context.Context, t testing.TB, in lab.Execer, name string, args ...string) string {
	t.Helper()
	out, err := in.Exec(ctx, name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
