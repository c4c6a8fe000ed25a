package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"os"
)

// entry is a file of an archive: from a file, from bytes, or a link. One of the three is set. name is the path in the
// archive.
type entry struct {
	name, from, link string
	data             []byte
	mode             int64
}

// archive writes a compressed tar whose bytes depend on nothing but what is in it. So a rebuild of the same commit has
// the same sums, which proves that the binaries are of that source. Entries have the commit's time, owner 0, and the
// order of the list.
func (r *release) archive(name string, entries []entry) error {
	packed, _, err := r.layer(entries)
	if err != nil {
		return err
	}
	return r.write(name, packed)
}

// layer is a tar of the entries, compressed and not. An image names its layers by the digests of both forms.
func (r *release) layer(entries []entry) (packed, plain []byte, err error) {
	plain, err = r.tar(entries)
	if err != nil {
		return nil, nil, err
	}
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, nil, err
	}
	if _, err := z.Write(plain); err != nil {
		return nil, nil, err
	}
	if err := z.Close(); err != nil {
		return nil, nil, err
	}
	return b.Bytes(), plain, nil
}

// tar holds an archive in memory: the largest is the image, of some tens of megabytes.
func (r *release) tar(entries []entry) ([]byte, error) {
	var b bytes.Buffer
	t := tar.NewWriter(&b)
	for _, e := range entries {
		data := e.data
		if e.from != "" {
			var err error
			data, err = os.ReadFile(e.from)
			if err != nil {
				return nil, err
			}
		}
		h := &tar.Header{Name: e.name, Mode: e.mode, Size: int64(len(data)), ModTime: r.made, Typeflag: tar.TypeReg, Format: tar.FormatUSTAR}
		if e.link != "" {
			h.Typeflag, h.Linkname = tar.TypeSymlink, e.link
		}
		if err := t.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := t.Write(data); err != nil {
			return nil, err
		}
	}
	if err := t.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
