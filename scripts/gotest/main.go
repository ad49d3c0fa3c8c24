// Command gotest runs "go test -json" with its arguments and prints what a
// person wants of it: each package's line, the whole output of what failed, and
// one closing line "N passed, N failed, N skipped". A skipped test is a
// failure: what CI does not run, nobody runs.
package main

import (
	"fmt"
	"os"
	"os/exec"
)

func main() {
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
	}
	os.Exit(code)
}

func run(args []string) (int, error) {
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 1, fmt.Errorf("open pipe: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return 1, fmt.Errorf("start go test: %w", err)
	}
	r := newReport(os.Stdout)
	readErr := r.read(out)
	testErr := cmd.Wait()
	r.close()
	if readErr != nil {
		return 1, fmt.Errorf("read output of go test: %w", readErr)
	}
	if testErr != nil || !r.good() {
		return 1, nil
	}
	return 0, nil
}
