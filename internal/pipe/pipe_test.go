package pipe

import (
	"bytes"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// slow takes longer over its first Write than the pipe is waited for.
type slow struct {
	got bytes.Buffer
	r   *os.File
}

func (s *slow) Write(p []byte) (int, error) {
	if s.got.Len() == 0 {
		_ = s.r.SetReadDeadline(time.Unix(1, 0))
	}
	return s.got.Write(p)
}

// TestCopyAfterTheDeadline has more in a pipe than one reading takes, and its other end open.
func TestCopyAfterTheDeadline(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	const size = 256 << 10
	rc, err := w.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := rc.Control(func(fd uintptr) { _, err = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, size) }); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Skipf("make a larger pipe: %v", err)
	}
	if _, err := w.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	out := &slow{r: r}
	if n, err := Copy(out, r); n != size || out.got.Len() != size || err != nil {
		t.Errorf("copied %d bytes, %d came: %v", n, out.got.Len(), err)
	}
	if n, err := Copy(out, r); n != 0 || err != nil { // empty, and not waited for
		t.Errorf("copied %d bytes of nothing: %v", n, err)
	}
}
