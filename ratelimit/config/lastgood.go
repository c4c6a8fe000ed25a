package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// copied is a copy on disk of the files whose rules are in force. Data is
// base64, so that it comes back to the byte.
type copied struct {
	Format int    `json:"sluice_last_good"`
	Files  []Text `json:"files"`
}

const copyFormat = 1

// KeepLastGood has each load that succeeds leave a copy of its files at path, for
// LoadLastGood after a restart. It is to be called before the first load. The
// file belongs to one node. It must not be among the rules: it would be read as
// one of them.
func (s *Store) KeepLastGood(path string) error {
	if tree, ok := s.source.(Tree); ok && below(path, tree.Path) {
		return fmt.Errorf("%s is below %s, where rules are read from: put it elsewhere", path, tree.Path)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.copyPath = path
	return nil
}

// below tells whether a path is a directory, or in it.
func below(path, dir string) bool {
	at, rules := absolute(filepath.Dir(path)), absolute(dir)
	return at == rules || strings.HasPrefix(at, rules+string(filepath.Separator))
}

func absolute(path string) string {
	if real := resolve(path); real != "" {
		path = real
	}
	if whole, err := filepath.Abs(path); err == nil {
		return whole
	}
	return path
}

// keepLocked writes the copy. A copy that cannot be written costs no rules; it is
// logged and counted.
func (s *Store) keepLocked(files []Text) {
	if s.copyPath == "" {
		return
	}
	if err := writeCopy(s.copyPath, files); err != nil {
		s.copyErrors.Add(1)
		s.log.Error("the last good rules are not on disk: a restart with a bad config would not have them", "event", "config_copy_error", "error", err)
	}
}

// writeCopy replaces the file whole or not at all, also when the machine stops:
// the new one is on disk before it takes the name of the old one.
func writeCopy(path string, files []Text) error {
	data, err := json.Marshal(copied{copyFormat, files})
	if err != nil {
		return err
	}
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) { // of a process that was killed here
		return err
	}
	f, err := os.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(fresh, path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// readCopy reads no more than the bounds allow. A file that others may write is
// refused: who writes it would choose the rules.
func readCopy(path string, b Bounds) ([]Text, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o022 != 0 {
		return nil, fmt.Errorf("%s has the permissions %v: others may write it; chmod 600 it if you trust what it holds", path, info.Mode().Perm())
	}
	b = b.OrDefault()
	most := 2*int64(b.TotalBytes) + 1<<20 // base64 and names
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > most {
		return nil, fmt.Errorf("%s is more than %d bytes: it is not a copy of rules within CONFIG_MAX_BYTES", path, most)
	}
	var c copied
	if err := json.Unmarshal(data, &c); err != nil {
		return nil, fmt.Errorf("%s is not a copy of rules: %w", path, err)
	}
	if c.Format != copyFormat {
		return nil, fmt.Errorf("%s has sluice_last_good %d, and this version reads %d: remove it", path, c.Format, copyFormat)
	}
	return c.Files, nil
}

// LoadLastGood puts the copy's rules in force, where the source's are bad or not
// there: why says so. They are checked as any are. It does nothing without
// KeepLastGood, or once there are rules.
func (s *Store) LoadLastGood(why error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.copyPath == "" || s.Rules() != nil {
		return why
	}
	files, err := readCopy(s.copyPath, s.options.Bounds)
	if err != nil {
		return fmt.Errorf("%w\nand the last good rules are not to be had: %w", why, err)
	}
	compiled := s.compileLocked(files)
	if len(compiled.problems) > 0 {
		return fmt.Errorf("%w\nand the last good rules in %s are bad, too:\n%w", why, s.copyPath, compiled.problems)
	}
	s.useLocked(compiled)
	s.fromCopy.Store(true)
	s.log.Error("STARTED WITH THE LAST GOOD RULES, from the copy on disk: the config is bad or not there", "event", "config_last_good",
		"copy", s.copyPath, "files", len(files), "rules", len(compiled.rules.All()), "error", cut(why.Error(), maxMessage))
	return nil
}
