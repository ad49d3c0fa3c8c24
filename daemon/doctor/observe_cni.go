package doctor

import (
	"os"
	"path/filepath"

	"github.com/tenure-cni/tenure/daemon/cnidir"
)

func observeCNI(confDir, binDir string) CNI {
	c := CNI{ConfDir: confDir, BinDir: binDir, Programs: map[string]bool{}}
	files, err := cnidir.Read(confDir)
	if err != nil {
		c.ConfErr = err.Error()
	}
	c.Files = files
	programs, _ := os.ReadDir(binDir)
	for _, e := range programs {
		info, err := os.Stat(filepath.Join(binDir, e.Name())) // what a link leads to
		if err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
			c.Programs[e.Name()] = true
		}
	}
	return c
}
