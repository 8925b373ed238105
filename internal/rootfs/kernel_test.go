package rootfs

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOneByOne goes by the release of the kernel: one of before 6.5 takes any option, and knows them only when the
// mount is made.
func TestOneByOne(t *testing.T) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	if want := major > 6 || major == 6 && minor >= 7; oneByOne() != want {
		t.Errorf("on Linux %d.%d: %t", major, minor, !want)
	}
}
