package archive

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/containerd/errdefs"

	"berth/internal/fail"
	"berth/internal/image/damage"
)

// copyFileTo writes the one file of the tar to w, and proves that it is the blob.
func (o *original) copyFileTo(ctx context.Context, w io.Writer) error {
	in, out := io.Pipe()
	over := make(chan error, 1)
	go func() {
		err := o.copyTo(ctx, out)
		over <- err
		_ = out.CloseWithError(err)
	}()
	sum := o.layer.Blob.Digest.Algorithm().Digester()
	err := oneFile(in, io.MultiWriter(w, sum.Hash()))
	_ = in.CloseWithError(err) // copyTo ends, if it has not
	if proof := <-over; proof != nil && !errors.Is(proof, io.ErrClosedPipe) {
		return proof
	}
	if err != nil {
		return fmt.Errorf("read the file of the layer: %w", err)
	}
	if sum.Digest() != o.layer.Blob.Digest {
		return fail.New(errdefs.ErrDataLoss, "its file has the digest %s, not that of the blob: %s", sum.Digest(),
			damage.Advice)
	}
	return nil
}

// oneFile copies the content of the first file of a tar, and reads the tar to its end.
func oneFile(in io.Reader, w io.Writer) error {
	r := tar.NewReader(in)
	for {
		h, err := r.Next()
		if err != nil {
			return err
		}
		if h.Typeflag == tar.TypeReg {
			break
		}
	}
	if _, err := io.Copy(w, r); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, in)
	return err
}
