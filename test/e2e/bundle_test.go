package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/test/cluster"
)

// TestSupportBundle has in it what explains a node and none of the secrets
// that lie about, also where none belongs.
func TestSupportBundle(t *testing.T) {
	const secret = "hunter2-the-password"
	ctx := cluster.Context(t, time.Minute)
	c := cluster.New(ctx, t, cluster.Network, "n1")
	n := c.Nodes[0]
	p := cluster.Pod(ctx, t, n, "p")
	dir := t.TempDir()
	for name, content := range map[string]string{
		"password": secret, "key.pem": "-----BEGIN PRIVATE KEY-----\n" + secret + "\n-----END PRIVATE KEY-----\n",
		"tenured.yaml": "etcd-endpoints: [http://root:" + secret + "@192.0.2.2:2379]\netcd-password-file: " + dir + "/password\netcd-keyfile: " + dir + "/key.pem\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(n.CNIDir, "20-other.conf"), []byte(`{"name":"other","type":"x","token":"`+secret+`"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	bundle := filepath.Join(dir, "b.tar.gz")
	flags := []string{"support-bundle", "-o", bundle, "--config", dir + "/tenured.yaml", "--run-dir", n.RunDir, "--state-dir", n.StateDir, "--cni-conf-dir", n.CNIDir}
	if r := cluster.Run(ctx, t, n, "tenurectl", flags...); r.Code != 0 {
		t.Fatalf("support-bundle: %s", r)
	}
	if info, err := os.Stat(bundle); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	all := cluster.Exec(ctx, t, n, "tar", "-xzOf", bundle)
	if strings.Contains(all, secret) {
		t.Errorf("a secret is in it: …%s…", all[max(0, strings.Index(all, secret)-200):strings.Index(all, secret)])
	}
	names := cluster.Exec(ctx, t, n, "tar", "-tzf", bundle)
	for _, part := range []string{"tenure/status.json", "tenure/doctor.json", "tenure/ledger.json", "tenure/node.json", "tenure/net.d/10-tenure.conflist", "tenure/host/iptables-save-c.txt", "egress.txt"} {
		if !strings.Contains(names, part) {
			t.Errorf("%s is not among\n%s", part, names)
		}
	}
	for _, part := range []string{cluster.Status(ctx, t, n).UID, p.IP.String(), p.ContainerID(), "TENURE-MASQ", "tenure.1", "<removed>", dir + "/password"} {
		if !strings.Contains(all, part) {
			t.Errorf("%q is not in it", part)
		}
	}
	if r := cluster.Run(ctx, t, n, "tenurectl", flags...); r.Code != 1 || !strings.Contains(r.Said, "exists") {
		t.Errorf("over another file: %s", r)
	}
}
