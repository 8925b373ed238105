package image

import (
	"context"
	"errors"
	"io"
	"os"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/image/layer"
)

// afterwards is the source for another attempt. Of one that was too slow for the memory that its layer takes, the next
// content is on the disk before it is unpacked: then it needs the memory for no longer than any other, and however slow
// the host is, it comes to an end.
func afterwards(src source, err error) source {
	if paced, ok := src.(pacedSource); ok && errors.Is(err, layer.ErrGaveWay) {
		paced.whole = true
		return paced
	}
	return src
}

// openIn opens content that is going to be unpacked into dir, on the disk of which it is kept first where the source
// wants that.
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

// spool copies content into a file of dir that has no name.
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

// withHolder has the content give back the memory of a large window when it is slow and others wait for that.
func withHolder(ctx context.Context, content io.ReadCloser, end context.CancelCauseFunc) context.Context {
	c, ok := content.(pacedContent)
	if !ok {
		return ctx
	}
	return layer.WithHolder(ctx, &layer.Holder{IsSlow: c.transfer.Starves, End: end})
}
