package pod

import (
	"bytes"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestOutputFitsIntoOneAnswer(t *testing.T) {
	const half, all = MaxExecOutput / 2, MaxExecOutput
	for _, c := range []struct{ out, err, wantOut, wantErr int }{
		{0, 0, 0, 0},
		{half, half, half, half},
		{all, 0, all, 0},
		{0, all, 0, all},
		{all, 100, all - 100, 100},
		{100, all, 100, all - 100},
		{all, all, half, half},
		{half + 1, half, half, half},
		{half + 5, half - 5, half + 5, half - 5},
	} {
		o := Output{Stdout: make([]byte, c.out), Stderr: make([]byte, c.err)}
		lost := o.fit()
		if len(o.Stdout) != c.wantOut || len(o.Stderr) != c.wantErr || lost != int64(c.out+c.err-c.wantOut-c.wantErr) {
			t.Errorf("of %d and %d bytes %d and %d are kept, %d lost", c.out, c.err, len(o.Stdout), len(o.Stderr), lost)
		}
	}
}

// TestCaptureReadLate has no time left for what was written while nobody read, and a child that holds the pipe.
func TestCaptureReadLate(t *testing.T) {
	for range 200 {
		c, err := newCapture()
		if err != nil {
			t.Fatal(err)
		}
		held, err := dup(c.w)
		if err != nil {
			t.Fatal(err)
		}
		wrote := bytes.Repeat([]byte("x"), 48<<10)
		if _, err := c.w.Write(wrote); err != nil {
			t.Fatal(err)
		}
		got := c.end(time.Unix(1, 0))
		_ = held.Close()
		if !bytes.Equal(got, wrote) {
			t.Fatalf("%d of %d bytes are there", len(got), len(wrote))
		}
	}
}

func dup(f *os.File) (*os.File, error) {
	rc, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	if err := rc.Control(func(u uintptr) { fd, err = unix.FcntlInt(u, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "held"), err
}
