package image

import (
	"context"
	"errors"
	"io"
	"os"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/diskspace"
	"berth/internal/image/layer"
	"berth/internal/image/progress"
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

// spoolSize returns how many bytes of the disk a blob takes before it is unpacked: none, unless it is spooled.
func spoolSize(src source, desc ocispec.Descriptor) int64 {
	if paced, ok := src.(pacedSource); ok && paced.whole {
		return desc.Size
	}
	return 0
}

// openIn opens content that will be unpacked into dir. If the source asks for it, the content is spooled there first.
// The caller tells its progress by told, which is tell unless the content was told while it was spooled.
func openIn(
	ctx context.Context, s *pipeline, dir string, src source, desc ocispec.Descriptor, tell progress.Tell,
) (rc io.ReadCloser, told progress.Tell, err error) {
	content, err := src.open(ctx, desc)
	if err != nil || spoolSize(src, desc) == 0 {
		return content, tell, err
	}
	arrives := &toldReader{r: content, tell: func(done int64) { tell(done, senderOf(content)) }}
	file, err := spool(arrives, dir, gauge(s))
	if err != nil {
		return nil, nil, errors.Join(err, content.Close())
	}
	return spooled{file, content.(pacedContent)}, func(int64, string) {}, nil
}

// toldReader tells how many bytes were read.
type toldReader struct {
	r    io.Reader
	done int64
	tell func(done int64)
}

func (c *toldReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.done += int64(n)
	c.tell(c.done)
	return n, err
}

// spool copies content into an unnamed file in dir, as long as the disk has room by its gauge.
func spool(content io.Reader, dir string, disk *diskspace.Gauge) (*os.File, error) {
	file, err := os.CreateTemp(dir, "blob-")
	if err != nil {
		return nil, err
	}
	if err = os.Remove(file.Name()); err == nil {
		_, err = io.Copy(io.MultiWriter(disk, file), content)
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
