package runtimes

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

const (
	// image is the name under which the runtimes know what writeImage wrote.
	image = "tenure.test/box:1"
	// servePort is where a pod answers HTTP with its host name.
	servePort = 8080
	// serve is what a pod's container runs. The image by itself waits: as the
	// sandbox of a pod it can write nowhere.
	serve = "hostname > /index.html && exec httpd -f -p 8080 -h /"
)

// archive is a tar file in the making.
type archive struct {
	bytes.Buffer
	w *tar.Writer
}

func newArchive() *archive {
	a := new(archive)
	a.w = tar.NewWriter(&a.Buffer)
	return a
}

func (a *archive) add(t *testing.T, h tar.Header, content []byte) {
	t.Helper()
	h.Size = int64(len(content))
	if err := a.w.WriteHeader(&h); err != nil {
		t.Fatal(err)
	}
	if _, err := a.w.Write(content); err != nil {
		t.Fatal(err)
	}
}

func (a *archive) file(t *testing.T, name string, content []byte) {
	t.Helper()
	a.add(t, tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755}, content)
}

// bytes ends the archive.
func (a *archive) bytes(t *testing.T) []byte {
	t.Helper()
	if err := a.w.Close(); err != nil {
		t.Fatal(err)
	}
	return a.Bytes()
}

// object is a JSON object.
type object = map[string]any

// blob puts content into the layout and describes it.
func (a *archive) blob(t *testing.T, mediaType string, content []byte) object {
	t.Helper()
	sum := fmt.Sprintf("%x", sha256.Sum256(content))
	a.file(t, "blobs/sha256/"+sum, content)
	return object{"mediaType": mediaType, "digest": "sha256:" + sum, "size": len(content)}
}

// writeImage writes the archive of the image that pods run: a static busybox
// and its names.
func writeImage(t *testing.T, dir string) string {
	t.Helper()
	return writeOCI(t, filepath.Join(dir, "image.tar"), image, rootFS(t), object{"Env": []string{"PATH=/bin"}, "Cmd": []string{"/bin/sleep", "86400"}, "WorkingDir": "/"})
}

// writeOCI writes an OCI image archive with one layer, and returns its path.
func writeOCI(t *testing.T, path, name string, fs []byte, run object) string {
	t.Helper()
	const oci = "application/vnd.oci.image."
	platform := object{"architecture": runtime.GOARCH, "os": "linux"}
	out := newArchive()
	layer := out.blob(t, oci+"layer.v1.tar", fs)
	config := out.blob(t, oci+"config.v1+json", encode(t, object{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": run,
		"rootfs": object{"type": "layers", "diff_ids": []any{layer["digest"]}},
	}))
	manifest := out.blob(t, oci+"manifest.v1+json", encode(t, object{
		"schemaVersion": 2, "mediaType": oci + "manifest.v1+json", "config": config, "layers": []object{layer},
	}))
	manifest["platform"] = platform
	manifest["annotations"] = object{"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
	out.file(t, "index.json", encode(t, object{"schemaVersion": 2, "manifests": []object{manifest}}))
	out.file(t, "oci-layout", encode(t, object{"imageLayoutVersion": "1.0.0"}))
	if err := os.WriteFile(path, out.bytes(t), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func encode(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// rootFS is the image's only layer.
func rootFS(t *testing.T) []byte {
	t.Helper()
	fs := newArchive()
	for _, dir := range []string{"bin/", "dev/", "etc/", "proc/", "sys/", "run/"} {
		fs.add(t, tar.Header{Name: dir, Typeflag: tar.TypeDir, Mode: 0o755}, nil)
	}
	fs.file(t, "bin/busybox", busybox(t))
	for _, name := range []string{"sh", "hostname", "httpd", "nc", "sleep", "wget"} {
		fs.add(t, tar.Header{Name: "bin/" + name, Typeflag: tar.TypeSymlink, Linkname: "busybox", Mode: 0o777}, nil)
	}
	fs.file(t, "etc/passwd", []byte("root:x:0:0:root:/:/bin/sh\n"))
	fs.file(t, "etc/group", []byte("root:x:0:\n"))
	return fs.bytes(t)
}

// busybox is the system's, which has to run without any library.
func busybox(t *testing.T) []byte {
	t.Helper()
	path, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatalf("%v (scripts/deps test)", err)
	}
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			t.Fatalf("%s needs libraries: install the static one (busybox-static)", path)
		}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
