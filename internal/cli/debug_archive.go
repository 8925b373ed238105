package cli

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"time"
)

// dumpArchive is a compressed tar of files that root alone may read.
type dumpArchive struct {
	zip *gzip.Writer
	tar *tar.Writer
	now time.Time
}

func newDumpArchive(w io.Writer) *dumpArchive {
	zip := gzip.NewWriter(w)
	return &dumpArchive{zip, tar.NewWriter(zip), time.Now()}
}

func (a *dumpArchive) add(name string, data []byte) error {
	head := &tar.Header{Name: "berth-debug/" + name, Mode: 0o600, Size: int64(len(data)), ModTime: a.now}
	if err := a.tar.WriteHeader(head); err != nil {
		return err
	}
	_, err := a.tar.Write(data)
	return err
}

func (a *dumpArchive) close() error { return errors.Join(a.tar.Close(), a.zip.Close()) }
