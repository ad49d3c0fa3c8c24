package install

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// What was done with a file.
const (
	Written   = "written"
	Unchanged = "unchanged"
	Kept      = "kept"
)

// Put puts one file in place below root and says what it did.
//
// It is written under another name in the same directory and renamed: a program
// that runs keeps its inode, nobody gets "text file busy", and a reader sees
// the one or the other. The name begins with a dot and ends in an extension
// that no runtime reads. It is always the same, under a lock of the directory,
// so what a killed installer has left is written over by the next.
func Put(root string, f File) (done string, err error) {
	path := filepath.Join(root, f.Path)
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make the directory of %s: %w", path, err)
	}
	unlock, err := lock(dir)
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(path); f.Keep && err == nil {
		return Kept, nil
	}
	src, size, err := open(f)
	if err != nil {
		return "", fmt.Errorf("install %s: %w", path, err)
	}
	defer func() { _ = src.Close() }()
	if same(path, src, size, f.Mode) {
		return Unchanged, nil
	}
	if err := replace(path, src, size, f.Mode); err != nil {
		return "", fmt.Errorf("install %s, which stays as it was: %w", path, err)
	}
	return Written, nil
}

// lock holds the directory until unlock; a process that ends lets it go.
func lock(dir string) (unlock func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("lock directory: %w", err)
	}
	if err := unix.Flock(int(d.Fd()), unix.LOCK_EX); err != nil && !errors.Is(err, unix.ENOLCK) && !errors.Is(err, unix.EOPNOTSUPP) {
		_ = d.Close()
		return nil, fmt.Errorf("lock directory %s: %w", dir, err)
	}
	return func() { _ = d.Close() }, nil
}

type source interface {
	io.ReaderAt
	io.Closer
}

type content struct{ *bytes.Reader }

func (content) Close() error { return nil }

// open opens what is to be installed. A program has to be whole.
func open(f File) (source, int64, error) {
	if f.From == "" {
		return content{bytes.NewReader(f.Content)}, int64(len(f.Content)), nil
	}
	src, err := os.Open(f.From)
	if err != nil {
		return nil, 0, err
	}
	info, err := src.Stat()
	if err == nil {
		err = whole(src, info.Size())
	}
	if err != nil {
		_ = src.Close()
		return nil, 0, fmt.Errorf("%s is no complete program: %w", f.From, err)
	}
	return src, info.Size(), nil
}

// whole reads the tables of a program, the last of which is at its end, and
// compares the size with what is to be loaded.
func whole(r io.ReaderAt, size int64) error {
	f, err := elf.NewFile(r)
	if err != nil {
		return err
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD && int64(p.Off+p.Filesz) > size {
			return fmt.Errorf("it ends at %d, before byte %d of a segment: %w", size, p.Off+p.Filesz, io.ErrUnexpectedEOF)
		}
	}
	return nil
}

// same: the file is already as wanted.
func same(path string, src source, size int64, mode fs.FileMode) bool {
	old, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = old.Close() }()
	info, err := old.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() != size || info.Mode().Perm() != mode {
		return false
	}
	const part = 1 << 16
	a, b := make([]byte, part), make([]byte, part)
	for at := int64(0); at < size; at += part {
		n := min(part, size-at)
		_, errA := old.ReadAt(a[:n], at)
		_, errB := src.ReadAt(b[:n], at)
		if (errA != nil || errB != nil) && at+n < size || !bytes.Equal(a[:n], b[:n]) {
			return false
		}
	}
	return true
}

// interim is the name under which a file is written.
func interim(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
}

func replace(path string, src io.ReaderAt, size int64, mode fs.FileMode) (err error) {
	tmp := interim(path)
	// Made anew: what is there may be a link, or be read by somebody.
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(tmp)
		}
	}()
	n, err := io.Copy(f, io.NewSectionReader(src, 0, size))
	if err == nil && n != size {
		err = fmt.Errorf("%d of %d bytes could be read: %w", n, size, io.ErrUnexpectedEOF)
	}
	if err == nil {
		err = errors.Join(f.Chmod(mode), f.Sync())
	}
	if err != nil {
		return err
	}
	// Closed before the rename: a file that is open for writing cannot be run.
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	if err := d.Sync(); err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return nil
}
