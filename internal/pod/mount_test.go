package pod

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

func unmountForTest(t *testing.T, path string) {
	t.Helper()
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) &&
		!errors.Is(err, unix.ENOENT) {
		t.Fatalf("unmount %s: %v", path, err)
	}
}
