// Command fuzz runs the fuzz targets of the module, each for the same time, and
// fails if one finds an input that is not treated as it should be. Such an input is
// left in the target's testdata/fuzz, where every later "go test" tries it again:
// commit it.
//
// "go test -fuzz" builds everything that a test needs anew, etcd's server too. Here
// only the module's own packages are built to tell which way an input took, which
// is where the decoders are.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	o := options{dir: ".", out: os.Stdout}
	flag.DurationVar(&o.each, "time", 30*time.Second, "how long each target runs")
	flag.IntVar(&o.atOnce, "at-once", 1, "how many targets run at the same time, each on one processor")
	flag.StringVar(&o.only, "only", "", "run only targets whose package and name have this in them")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "fuzz: unexpected arguments:", strings.Join(flag.Args(), " "))
		os.Exit(2)
	}
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		os.Exit(1)
	}
}
