package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
	"github.com/tenure-cni/tenure/test/lab/labtest"
)

// onACopy makes a copy of this machine's file system that is gone with the
// shell; $1 is the package, and there it is /p.deb.
const onACopy = `
work=$(mktemp -d)
trap 'cd /; umount -l "$work"; rmdir "$work"' EXIT
mount -t tmpfs none "$work"
mkdir "$work/up" "$work/w" "$work/root"
mount -t overlay -o "lowerdir=/,upperdir=$work/up,workdir=$work/w" none "$work/root"
for d in proc sys dev; do mount --rbind /$d "$work/root/$d"; done
mount -t tmpfs none "$work/root/run"
mount -t tmpfs none "$work/root/tmp"
cp "$1" "$work/root/p.deb"
copy() { chroot "$work/root" "$@"; }
`

// packageLife installs, runs, upgrades, removes and purges the package.
const packageLife = `
left() { echo "left: $*"; exit 1; }
copy dpkg -i /p.deb
copy tenured --version
copy tenurectl version
test -x "$work/root/opt/cni/bin/tenure" -a -x "$work/root/opt/cni/bin/tenure-ipam"
test -e "$work/root/usr/lib/systemd/system/tenured.service"
for f in man/man8/tenured.8.gz man/man8/tenurectl.8.gz bash-completion/completions/tenurectl zsh/vendor-completions/_tenurectl fish/vendor_completions.d/tenurectl.fish; do
	test -s "$work/root/usr/share/$f" || { echo "missing: $f"; exit 1; }
done
if copy tenurectl status 2>/dev/null; then echo "something was started"; exit 1; fi
cat >"$work/root/etc/tenure/tenured.yaml" <<END
node-name: n1
iface: [eth0]
etcd-embedded: true
new-cluster: true
network-config: '{"Network":"10.5.0.0/16"}'
metrics-listen: ""
cni-conf-file: /etc/cni/net.d/10-tenure.conflist
END
copy tenured --config /etc/tenure/tenured.yaml 2>"$work/log" &
daemon=$!
until copy tenurectl status >/dev/null 2>&1; do kill -0 $daemon; sleep 0.1; done
until test -e "$work/root/etc/cni/net.d/10-tenure.conflist"; do sleep 0.1; done
until ip link show dev tenure.1 >/dev/null 2>&1; do sleep 0.1; done

copy dpkg -i /p.deb # an upgrade: the daemon goes on, the configuration stays
copy tenurectl status >/dev/null
grep -q etcd-embedded "$work/root/etc/tenure/tenured.yaml"

copy dpkg -r tenure
wait $daemon
for f in etc/cni/net.d/10-tenure.conflist usr/sbin/tenured opt/cni/bin/tenure; do test ! -e "$work/root/$f" || left $f; done
test -e "$work/root/etc/tenure/tenured.yaml"
for d in tenure.1 tenure0; do ip link show dev $d 2>/dev/null && left $d; done
test -z "$(ip route show proto 90)" || left "$(ip route)"
iptables-save | grep TENURE && left rules

copy dpkg -P tenure
for f in etc/tenure/tenured.yaml var/lib/tenure run/tenure; do test ! -e "$work/root/$f" || left $f; done
echo all is well
`

// TestPackage: the deb on this machine's Debian, in a copy of its file system
// and on a node of a lab.
func TestPackage(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	_, nodes := labtest.Cluster(t, lab.Options{}, "n1")
	dir := t.TempDir()
	if out, err := exec.CommandContext(ctx, filepath.Join("..", "..", "scripts", "packages"), dir, "v1.2.3-4-gabc").CombinedOutput(); err != nil {
		t.Fatalf("scripts/packages: %v\n%s", err, out)
	}
	for _, pattern := range []string{"tenure_1.2.3.4.gabc_*.deb", "tenure-1.2.3.4.gabc-1.*.rpm"} {
		if found, err := filepath.Glob(filepath.Join(dir, pattern)); err != nil || len(found) != 1 {
			t.Fatalf("%s: %v, %v", pattern, found, err)
		}
	}
	debs, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(dir, "life")
	if err := os.WriteFile(script, []byte(onACopy+packageLife), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Log(cluster.Exec(ctx, t, nodes[0], "unshare", "-m", "sh", "-eu", script, debs[0]))
}
