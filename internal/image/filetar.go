package image

import (
	"archive/tar"
	"bufio"
	"bytes"
	"errors"
	"io"
	"strings"
	"time"
)

// A blob of an artifact that is one file is unpacked from a tar that the daemon puts around it: directories, the file,
// and the end. So the unpacker, its confinement, the limits and the checks are those of any layer. The tar follows from
// the blob and the path alone, so the same file has the same diff id on every node.

const (
	tarBlock = 512
	fileMode = 0o444
	dirMode  = 0o755
)

// asTar returns the tar that a layer is unpacked from: its blob, or a tar around it.
func asTar(blob io.Reader, w layerRequest) (io.Reader, error) {
	if w.part.Path == "" {
		return blob, nil
	}
	if w.part.MayBeTar {
		head := bufio.NewReaderSize(blob, tarBlock)
		if begin, _ := head.Peek(tarBlock); isTar(begin) { // the next read returns an error again
			return head, nil
		}
		blob = head
	}
	begin, end, err := tarAround(w.part.Path, w.desc.Size)
	if err != nil {
		return nil, err
	}
	return io.MultiReader(bytes.NewReader(begin), blob, bytes.NewReader(end)), nil
}

// isTar reports whether a blob that begins so is a tar.
func isTar(begin []byte) bool {
	if len(begin) < tarBlock {
		return false
	}
	_, err := tar.NewReader(bytes.NewReader(begin)).Next() // fails later if more than one block makes the first entry
	return !errors.Is(err, tar.ErrHeader) && !errors.Is(err, io.EOF)
}

// tarAround returns what is before and behind the content of a file in its tar.
func tarAround(path string, size int64) (begin, end []byte, err error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	entry := func(h tar.Header) {
		h.ModTime = time.Unix(0, 0)
		err = errors.Join(err, w.WriteHeader(&h))
	}
	entry(tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: dirMode})
	for i, c := range path {
		if c == '/' {
			entry(tar.Header{Name: path[:i+1], Typeflag: tar.TypeDir, Mode: dirMode})
		}
	}
	entry(tar.Header{Name: path, Typeflag: tar.TypeReg, Mode: fileMode, Size: size})
	padding := (tarBlock - size%tarBlock) % tarBlock
	return buf.Bytes(), []byte(strings.Repeat("\x00", int(padding)+2*tarBlock)), err
}
