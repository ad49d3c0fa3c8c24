package attach

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// TestGone asks the kernel about pods in every condition. Only where link and
// namespace are both certainly no more may a pod be called gone.
func TestGone(t *testing.T) {
	b := newBench(t)
	b.add(t)
	host := sample().HostName()
	dir := t.TempDir()
	file, link, loop := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "loop")
	must(t, os.WriteFile(file, nil, 0o600))
	must(t, os.Symlink(filepath.Join(dir, "absent"), link))
	must(t, os.Symlink(loop, loop))
	hostNS := fmt.Sprintf("/proc/self/fd/%d", b.hostNS.FD())
	ask := func(what, netns string, want, fails bool) {
		t.Helper()
		if got, err := b.attacher.Gone(t.Context(), host, netns); got != want || (err != nil) != fails {
			t.Errorf("%s: gone %t, %v; want %t", what, got, err, want)
		}
	}
	for _, path := range []string{b.podNS.Path(), "", file, filepath.Join(dir, "absent"), hostNS} {
		ask("the link is there, the namespace said to be at "+path, path, false, false)
	}
	must(t, b.host.LinkDel(byName(t, b.host, host)))
	ask("somebody deleted the pair of a pod that lives", b.podNS.Path(), false, false)
	ask("nobody knows the namespace", "", true, false)
	ask("the path is no more", filepath.Join(dir, "absent"), true, false)
	ask("the path leads nowhere", link, true, false)
	ask("the path goes through a file", filepath.Join(file, "x"), true, false)
	ask("the file under a namespace that was mounted", file, true, false)
	ask("the path is the host's namespace now", hostNS, true, false)
	ask("the path cannot be followed", loop, false, true)

	// Whoever bears the name, it is not known that the pair is no more.
	must(t, b.host.LinkAdd(&netlink.Bridge{LinkAttrs: named(host)}))
	ask("another link bears the name", "", false, false)
}

// TestNamespaceTakesThePairAlong is what Gone relies on: the host end goes
// when the pod's namespace dies, and not before.
func TestNamespaceTakesThePairAlong(t *testing.T) {
	b := newBench(t)
	w, path := sample(), ""
	t.Run("pod", func(t *testing.T) { // its namespace dies with this subtest
		ns, _ := newPod(t)
		path = ns.Path()
		_, err := b.attacher.Add(t.Context(), path, w)
		must(t, err)
		if gone, err := b.attacher.Gone(t.Context(), w.HostName(), path); gone || err != nil {
			t.Errorf("while it lives: gone %t, %v", gone, err)
		}
	})
	end := time.After(10 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		gone, err := b.attacher.Gone(t.Context(), w.HostName(), path)
		must(t, err)
		if gone {
			break
		}
		select {
		case <-end:
			t.Fatal("its namespace died, and its pair did not go")
		case <-tick.C:
		}
	}
	b.wantLinks(t, []string{"tenure0"}, nil)
}
