package cnidir

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// File is one CNI configuration.
type File struct {
	// Name is that of the file, without the directory.
	Name string
	// Network is the name inside, Types the plugins in their order.
	Network string
	Types   []string
	// IPAM is the address plugin of ours among them, else of the first one.
	IPAM string
	// Socket is the socket that our plugin is told to call, "" for the default.
	Socket string
	// Err says why it cannot be read; a runtime may stop at such a file.
	Err string
}

// Ours reports whether the configuration brings pods to Tenure, wherever in the
// chain our plugin stands.
func (f File) Ours() bool {
	return f.IPAM == "tenure-ipam" || slices.Contains(f.Types, "tenure")
}

// Read returns the configurations in the order in which a runtime takes them:
// .conf, .conflist and .json, sorted by name. A directory that does not exist
// has none.
func Read(dir string) ([]File, error) {
	entries, err := os.ReadDir(dir) // sorted
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var files []File
	for _, e := range entries {
		if !e.IsDir() && slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(e.Name())) {
			files = append(files, readFile(filepath.Join(dir, e.Name())))
		}
	}
	return files, nil
}

// Winner is the configuration that a runtime uses instead of the named one:
// the first of all. ok is false where that is the named one itself, or where
// the named one is not there.
func Winner(files []File, name string) (winner File, ok bool) {
	if len(files) == 0 || files[0].Name == name || !slices.ContainsFunc(files, func(f File) bool { return f.Name == name }) {
		return File{}, false
	}
	return files[0], true
}

// Former are files that this Tenure has left behind beside the named one: they
// lead to the same socket, hold the plugins that Tenure writes, and differ in
// nothing but the number that orders them and the extension. Anything else, such
// as a copy with another plugin in the chain, is somebody's.
func Former(files []File, name, socket string) []File {
	return slices.DeleteFunc(slices.Clone(files), func(f File) bool {
		return f.Name == name || f.Err != "" || !f.Ours() || f.Socket != socket || stem(f.Name) != stem(name) ||
			f.Network != "tenure" || !slices.Equal(f.Types, []string{"tenure", "portmap"})
	})
}

// stem is a name without the number before and the extension behind it.
func stem(name string) string {
	return strings.TrimLeft(strings.TrimSuffix(name, filepath.Ext(name)), "0123456789-_")
}

// plugin is what matters of one plugin's configuration.
type plugin struct {
	Type   string     `json:"type"`
	Tenure socketForm `json:"tenure"`
	IPAM   struct {
		Type   string     `json:"type"`
		Tenure socketForm `json:"tenure"`
	} `json:"ipam"`
}

type socketForm struct {
	Socket string `json:"socket"`
}

func readFile(path string) File {
	f := File{Name: filepath.Base(path)}
	// A named pipe would hang whoever opens it.
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		f.Err = "is no regular file"
		return f
	}
	b, err := os.ReadFile(path)
	if err != nil {
		f.Err = err.Error()
		return f
	}
	var form struct {
		plugin
		Name    string   `json:"name"`
		Plugins []plugin `json:"plugins"`
	}
	if err := json.Unmarshal(b, &form); err != nil {
		f.Err = err.Error()
		return f
	}
	f.Network = form.Name
	all := form.Plugins
	if len(all) == 0 {
		all = []plugin{form.plugin} // one plugin, without a list
	}
	for _, p := range all {
		f.Types = append(f.Types, p.Type)
	}
	of := all[max(0, slices.IndexFunc(all, plugin.ours))]
	f.IPAM, f.Socket = of.IPAM.Type, of.Tenure.Socket+of.IPAM.Tenure.Socket
	return f
}

func (p plugin) ours() bool { return p.Type == "tenure" || p.IPAM.Type == "tenure-ipam" }
