package doctor

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
)

// observeCNI reads the directory as a runtime does: .conf, .conflist and .json,
// sorted by name.
func observeCNI(confDir, binDir string) CNI {
	c := CNI{ConfDir: confDir, BinDir: binDir, Programs: map[string]bool{}}
	entries, err := os.ReadDir(confDir) // sorted
	if err != nil && !os.IsNotExist(err) {
		c.ConfErr = err.Error()
	}
	for _, e := range entries {
		if !e.IsDir() && slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(e.Name())) {
			c.Files = append(c.Files, readConf(filepath.Join(confDir, e.Name())))
		}
	}
	programs, _ := os.ReadDir(binDir)
	for _, e := range programs {
		info, err := os.Stat(filepath.Join(binDir, e.Name())) // what a link leads to
		if err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
			c.Programs[e.Name()] = true
		}
	}
	return c
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

func readConf(path string) ConfFile {
	f := ConfFile{Name: filepath.Base(path)}
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
	for i, p := range all {
		f.Types = append(f.Types, p.Type)
		if i == 0 {
			f.IPAM, f.Socket = p.IPAM.Type, p.Tenure.Socket+p.IPAM.Tenure.Socket
		}
	}
	return f
}
