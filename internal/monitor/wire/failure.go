package wire

import (
	"errors"
	"io/fs"
	"slices"
	"syscall"
)

// lacks is what a monitor says of the kernel's errors: those of a node that lacks something. What the others mean is
// known where they were seen, and said in the text.
var lacks = []syscall.Errno{
	syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS, syscall.EIO,
	syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EAGAIN,
}

// Lacks reports whether err says that a node lacks something, as a monitor says it: the same may succeed later.
func Lacks(err error) bool {
	_, ok := lack(err)
	return ok
}

// lack is which error of the kernel says that.
func lack(err error) (errno syscall.Errno, ok bool) {
	ok = errors.As(err, &errno) && slices.Contains(lacks, errno)
	return errno, ok
}

// Fail puts an error into a reply; nil leaves it as it is.
func (r *Reply) Fail(err error) {
	if err == nil {
		return
	}
	r.Error = err.Error()
	errno, ok := lack(err)
	if !ok {
		return
	}
	r.Errno = int(errno)
	var of *fs.PathError
	if errors.As(err, &of) {
		r.Path = of.Path
	}
}

// Failure returns the error in a reply: its text, and below that what the kernel said. It is nil where there is none.
func (r *Reply) Failure() error {
	errno := syscall.Errno(r.Errno)
	switch {
	case r.Error == "":
		return nil
	case !slices.Contains(lacks, errno):
		return errors.New(r.Error)
	}
	return &failure{r.Error, &fs.PathError{Op: "monitor", Path: r.Path, Err: errno}}
}

// failure is an error of a monitor that comes from the kernel.
type failure struct {
	text  string
	cause error
}

func (f *failure) Error() string { return f.text }

func (f *failure) Unwrap() error { return f.cause }
