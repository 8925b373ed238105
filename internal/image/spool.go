package image

import (
	"context"
	"errors"
	"io"
	"os"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/image/layer"
)

// afterwards returns the source for another attempt. If the source was too slow while its layer held the memory for a
// large window, content is spooled to the disk before it is unpacked. The layer then holds the memory only while it is
// unpacked, and succeeds however slow the host is.
func afterwards(src source, err error) source {
	if paced, ok := src.(pacedSource); ok && errors.Is(err, layer.ErrGaveWay) {
		paced.whole = true
		return paced
	}
	return src
}

// openIn opens content that will be unpacked into dir. If the source asks for it, the content is spooled there first.
func openIn(ctx context.Context, dir string, src source, desc ocispec.Descriptor) (io.ReadCloser, error) {
	content, err := src.open(ctx, desc)
	if paced, ok := src.(pacedSource); err != nil || !ok || !paced.whole {
		return content, err
	}
	file, err := spool(content, dir)
	if err != nil {
		return nil, errors.Join(err, content.Close())
	}
	return spooled{file, content.(pacedContent)}, nil
}

// spool copies content into an unnamed file in dir.
func spool(content io.Reader, dir string) (*os.File, error) {
	file, err := os.CreateTemp(dir, "blob-")
	if err != nil {
		return nil, err
	}
	if err = os.Remove(file.Name()); err == nil {
		_, err = io.Copy(file, content)
	}
	if err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// spooled is content that was copied to a file. It is read at the pace of its transfer.
type spooled struct {
	file    *os.File
	content pacedContent
}

func (s spooled) Read(p []byte) (int, error) {
	return s.content.transfer.Read(s.content.ctx, s.file, p)
}

func (s spooled) Close() error { return errors.Join(s.file.Close(), s.content.Close()) }

// withHolder makes content that is slow give up the memory of a large window when others wait for it.
func withHolder(ctx context.Context, content io.ReadCloser, end context.CancelCauseFunc) context.Context {
	c, ok := content.(pacedContent)
	if !ok {
		return ctx
	}
	return layer.WithHolder(ctx, &layer.Holder{IsSlow: c.transfer.Starves, End: end})
}
