package conf

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// manifest is what of the DaemonSet must hold together.
type manifest struct {
	Kind string
	Data map[string]string
	Spec struct {
		Template struct {
			Spec struct {
				HostNetwork, HostPID       bool
				InitContainers, Containers []struct {
					Args         []string
					VolumeMounts []struct{ Name, MountPath, MountPropagation string }
				}
				Volumes []struct {
					Name     string
					HostPath struct{ Path string }
				}
			}
		}
	}
}

// TestDaemonSet: its configuration is one that tenured takes, and each path of
// the host that tenured works in is the same one in the container.
func TestDaemonSet(t *testing.T) {
	file, err := os.ReadFile(filepath.Join("kubernetes", "daemonset.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]manifest{}
	for text := range strings.SplitSeq(string(file), "\n---\n") {
		var m manifest
		if err := yaml.Unmarshal([]byte(text), &m); err != nil {
			t.Fatal(err)
		}
		all[m.Kind] = m
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "tenured.yaml")
	for name, content := range map[string]string{
		"tenured.yaml": strings.ReplaceAll(all["ConfigMap"].Data["tenured.yaml"], "/etc/tenure/etcd", dir), "ca.pem": "", "client.pem": "", "client-key.pem": "",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pod := all["DaemonSet"].Spec.Template.Spec
	args := slices.Clone(pod.Containers[0].Args)
	for i, a := range args {
		args[i] = strings.NewReplacer("/etc/tenure/tenured.yaml", config, "$(NODE_NAME)", "n1").Replace(a)
	}
	d, err := Load(args, nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if !pod.HostNetwork || !pod.HostPID {
		t.Error("it is not in the host's network or cannot see its processes")
	}
	host := map[string]string{}
	for _, v := range pod.Volumes {
		host[v.Name] = v.HostPath.Path
	}
	same := map[string]string{}
	for _, m := range pod.Containers[0].VolumeMounts {
		if host[m.Name] == m.MountPath {
			same[m.MountPath] = m.MountPropagation
		}
	}
	for _, path := range []string{d.RunDir, d.StateDir, filepath.Dir(d.CNIConfFile), filepath.Dir(d.Socket), "/run/netns", "/run/xtables.lock"} {
		if _, ok := same[path]; !ok {
			t.Errorf("%s is not the host's", path)
		}
	}
	if same["/run/netns"] != "HostToContainer" {
		t.Error("namespaces that come later are not seen")
	}
}
