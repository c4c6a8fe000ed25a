package config

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Copy is a source: the texts of the last good rules, which a [Store] wrote to a file on disk. The
// file belongs to one node.
type Copy struct {
	Path string
	Caps Caps // bounds of the read; zero: the default
}

// copied is the content of the file, as JSON. Data is base64 to keep every byte.
type copied struct {
	Format int    `json:"sluice_last_good"`
	Files  []Text `json:"files"`
}

const copyFormat = 1

// newCopy ends the name of a copy that is being written.
const newCopy = ".new"

// Read implements [Source]. It reads at most the bounds. A file that other users can write is
// refused: they could choose the rules.
func (c *Copy) Read() ([]Text, error) {
	f, err := os.Open(c.Path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o022 != 0 {
		return nil, fmt.Errorf("%s has the permissions %v: other users can write it; chmod 600 it if you trust "+
			"its content", c.Path, info.Mode().Perm())
	}
	most := 2*int64(c.Caps.OrDefault().TotalBytes) + 1<<20 // base64 and names
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > most {
		return nil, fmt.Errorf("%s is more than %d bytes: it is not a copy of rules within the caps on rules",
			c.Path, most)
	}
	var on copied
	if err := json.Unmarshal(data, &on); err != nil {
		return nil, fmt.Errorf("%s is not a copy of rules: %w", c.Path, err)
	}
	if on.Format != copyFormat {
		return nil, fmt.Errorf("%s has sluice_last_good %d, and this version reads %d: remove it", c.Path,
			on.Format, copyFormat)
	}
	return on.Files, nil
}

// String names the file.
func (c *Copy) String() string { return "the copy " + c.Path }

// Watch implements [Source]. The copy never changes by itself: only this node writes it.
func (c *Copy) Watch(ctx context.Context, _ Loader) error {
	<-ctx.Done()
	return nil
}

// write replaces the file as a whole or not at all, also if the machine stops: the new file is on
// disk before it takes the old name.
func (c *Copy) write(texts []Text) error {
	data, err := json.Marshal(copied{copyFormat, texts})
	if err != nil {
		return err
	}
	fresh := c.Path + newCopy
	if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) { // left by a killed process
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
	if err := os.Rename(fresh, c.Path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(c.Path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// KeepLastGood makes each successful load write its texts to a [Copy] at path, for LoadLastGood
// after a restart. Call it before the first load. The file must be outside of the rules directory,
// or it is read as rules.
func (s *Store) KeepLastGood(path string) error {
	if tree, ok := s.source.(*Tree); ok && (tree.holds(path) || tree.holds(path+newCopy)) {
		return fmt.Errorf("%s is in %s, from which rules are read: put it elsewhere", path, tree.Path)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastGood = &Copy{Path: path, Caps: s.options.Caps}
	return nil
}

// keepLocked writes the copy. Errors are logged and counted, and cost no rules.
func (s *Store) keepLocked(texts []Text) {
	if s.lastGood == nil {
		return
	}
	if err := s.lastGood.write(texts); err != nil {
		s.copyErrors.Add(1)
		s.log.Error("the copy of the last good rules was not written: a restart with a bad config would have no rules",
			"event", "config_copy_error", "error", err)
	}
}

// LoadLastGood puts the copy's rules in force if the source's rules are bad or missing, with the
// reason why. It checks them as usual. It does nothing without KeepLastGood, or if rules are in
// force.
func (s *Store) LoadLastGood(why error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lastGood == nil || s.Rules() != nil {
		return why
	}
	texts, err := s.lastGood.Read()
	if err != nil {
		return fmt.Errorf("%w\nand the last good rules are not available: %w", why, err)
	}
	compiled := s.compileLocked(texts)
	if len(compiled.problems) > 0 {
		return fmt.Errorf("%w\nand the last good rules in %s are bad, too:\n%w", why, s.lastGood.Path,
			compiled.problems)
	}
	s.useLocked(compiled)
	s.status.put(compiled.rules, s.lastGood)
	s.status.refuse(why) // also if the source has no rules yet
	s.log.Error("STARTED WITH THE LAST GOOD RULES, from the copy on disk: the config is bad or missing",
		"event", "config_last_good",
		"copy", s.lastGood.Path, "fingerprint", compiled.rules.Fingerprint(), "files", len(texts),
		"rules", len(compiled.rules.All()), "error", cut(why.Error(), maxMessage))
	return nil
}
