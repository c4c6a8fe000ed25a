package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// copied is the content, as JSON, of a file with the texts of the last good rules, which a [Store] wrote. The file
// belongs to one node. Data is base64 to keep every byte.
//
//	{"sluice_last_good":1,"files":[{"name":"edge.yaml","data":"ZG9tYWluOiBlZGdlCg=="}]}
type copied struct {
	Format int    `json:"sluice_last_good"`
	Files  []Text `json:"files"`
}

// copyFormat is the version of the file. A node refuses others: it cannot tell what they mean.
const copyFormat = 1

// newCopy ends the name of a copy that is being written. It must not be among the rules either.
const newCopy = ".new"

// readCopy reads at most the caps. A file that other users can write is refused: they could choose
// the rules.
func readCopy(path string, caps Caps) ([]Text, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	// The open file is asked, not its path, which could be another file by now.
	if info.Mode().Perm()&0o022 != 0 {
		return nil, fmt.Errorf("%s has the permissions %v: other users can write it; chmod 600 it if you trust "+
			"its content", path, info.Mode().Perm())
	}
	// base64 takes a third more, and the rest is room for names.
	most := 2*int64(caps.OrDefault().TotalBytes) + 1<<20
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > most {
		return nil, fmt.Errorf("%s is more than %d bytes: it is not a copy of rules within the caps on rules",
			path, most)
	}
	var on copied
	if err := json.Unmarshal(data, &on); err != nil {
		return nil, fmt.Errorf("%s is not a copy of rules: %w", path, err)
	}
	if on.Format != copyFormat {
		return nil, fmt.Errorf("%s has sluice_last_good %d, and this version reads %d: remove it", path,
			on.Format, copyFormat)
	}
	return on.Files, nil
}

// writeCopy replaces the file as a whole or not at all, also if the machine stops: the new file is on disk before it
// takes the old name. The file is made anew, with permissions of its own: one that is there may be a link, or be
// readable by others.
func writeCopy(path string, texts []Text) error {
	data, err := json.Marshal(copied{copyFormat, texts})
	if err != nil {
		return err
	}
	fresh := path + newCopy
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
	if err := os.Rename(fresh, path); err != nil {
		return err
	}
	// The new name is in the directory, which is written by itself.
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
