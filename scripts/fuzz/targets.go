package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
)

// target is one fuzz test: its package's directory, with slashes and below the
// module's root, and its name.
type target struct{ dir, name string }

func (t target) String() string { return t.dir + " " + t.name }

// targets are those of the module at root, read from the source, which takes less
// than asking the tests for their names.
func targets(root string) ([]target, error) {
	var all []target
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || slices.Contains([]string{"bin", "dist", "testdata"}, d.Name())) {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(d.Name(), "_test.go") {
			return nil
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		names, err := targetsOf(path)
		for _, name := range names {
			all = append(all, target{filepath.ToSlash(dir), name})
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look for fuzz targets: %w", err)
	}
	slices.SortFunc(all, func(a, b target) int { return strings.Compare(a.String(), b.String()) })
	return all, nil
}

func targetsOf(path string) ([]string, error) {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Fuzz") {
			names = append(names, f.Name.Name)
		}
	}
	return names, nil
}
