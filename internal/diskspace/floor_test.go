package diskspace

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// tmpfs mounts a file system in memory until the test ends.
func tmpfs(t *testing.T, options string) string {
	t.Helper()
	at := t.TempDir()
	if err := unix.Mount("tmpfs", at, "tmpfs", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	return at
}

func TestFloor(t *testing.T) {
	at := tmpfs(t, "size=10m,nr_inodes=100")
	floor := Floor{Percent: 30, Key: "some.key"}
	for need, low := range map[int64]bool{0: false, 6 << 20: false, 8 << 20: true, 1 << 40: true, -1: false} {
		err := floor.Check(at, need, "remove images")
		if (err != nil) != low {
			t.Errorf("%d bytes: %v", need, err)
		}
		if err == nil {
			continue
		}
		for _, want := range []string{
			"less than 30 % free", "which some.key keeps", at + " has too little room (10 of 10 MiB free",
			"): remove images, make",
		} {
			if !Lacking(err) || Explain(err, "/elsewhere", "x") != err || !strings.Contains(err.Error(), want) {
				t.Errorf("no %q in %q", want, err)
			}
		}
	}
	if err := os.WriteFile(filepath.Join(at, "filler"), make([]byte, 8<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	for percent, low := range map[int]bool{30: true, 15: false, 0: false} {
		if err := (Floor{Percent: percent}).Check(at, 0, ""); (err != nil) != low {
			t.Errorf("20 %% are free, and %d are to stay free: %v", percent, err)
		}
	}
}

func TestFloorOfInodes(t *testing.T) {
	at := tmpfs(t, "size=10m,nr_inodes=100")
	floor := Floor{Percent: 50, Key: "some.key"}
	for i := range 60 {
		if i == 40 && floor.Check(at, 0, "") != nil {
			t.Error("more than half of the inodes are free")
		}
		if err := os.WriteFile(filepath.Join(at, strconv.Itoa(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := floor.Check(at, 0, "remove images"); err == nil || !strings.Contains(err.Error(), "of 100 inodes") {
		t.Errorf("less than half of the inodes are free: %v", err)
	}
}

// TestGaugeLooks has a file system fill up while somebody writes a little, and then more.
func TestGaugeLooks(t *testing.T) {
	at := tmpfs(t, "size=10m")
	g := Gauge{Floor: Floor{Percent: 30, Key: "some.key"}, Dir: at, Remedy: "remove images"}
	if err := g.Spend(1); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(at, "filler"), make([]byte, 8<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	spent := 0
	for ; spent < 8<<20 && g.Spend(64<<10) == nil; spent += 64 << 10 {
	}
	if spent == 0 || spent > gaugeEvery {
		t.Errorf("it looked again after %d bytes", spent)
	}
	if n, err := (&Gauge{Floor: g.Floor, Dir: at}).Write(make([]byte, 7)); n != 7 || err == nil {
		t.Errorf("wrote %d, %v", n, err)
	}
}
