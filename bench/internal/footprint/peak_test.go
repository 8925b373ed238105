package footprint

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestPeakOutlivesTheMemoryAndCanBeReset(t *testing.T) {
	const size = 64 << 20
	self := os.Getpid()
	if err := ResetPeak(self); err != nil {
		t.Fatal(err)
	}
	before := resident(t)
	ballast, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < size; i += 4096 {
		ballast[i] = 1
	}
	with := resident(t)
	if err := unix.Munmap(ballast); err != nil {
		t.Fatal(err)
	}
	after := resident(t)
	// What the test itself allocates or gives back is far less than half of the ballast.
	if grown := with.Anonymous - before.Anonymous; grown < size/2 {
		t.Errorf("64 MiB of anonymous memory count as %d bytes", grown)
	}
	if after.Peak-after.Now < size/2 {
		t.Errorf("the peak is %d and what is left %d", after.Peak, after.Now)
	}
	if err := ResetPeak(self); err != nil {
		t.Fatal(err)
	}
	if reset := resident(t); reset.Peak-reset.Now >= size/2 {
		t.Errorf("after a reset the peak is %d, with %d now", reset.Peak, reset.Now)
	}
}

func resident(t *testing.T) Resident {
	t.Helper()
	r, err := ResidentOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestWorkCountsWritesAndTime(t *testing.T) {
	self := os.Getpid()
	before, err := WorkOf(self)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(t.TempDir(), "f"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	for begin := time.Now(); ; {
		w, err := WorkOf(self)
		if err != nil {
			t.Fatal(err)
		}
		did := w.Sub(before)
		if did.Written < 1<<20 {
			t.Fatalf("a MiB that was written counts as %d bytes", did.Written)
		}
		if did.CPU > 0 {
			return
		}
		if time.Since(begin) > time.Minute {
			t.Fatal("a minute of work takes no processor time")
		}
	}
}

// TestWorkIsCountedFinerThanTicks compares what a process has done with the clock that it has itself, read before and
// after each reading.
func TestWorkIsCountedFinerThanTicks(t *testing.T) {
	clock := func() time.Duration {
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &now); err != nil {
			t.Fatal(err)
		}
		return time.Duration(now.Nano())
	}
	work := func() time.Duration {
		w, err := WorkOf(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		return w.CPU
	}
	outerBegin, before, begin := clock(), work(), clock()
	for clock() < begin+tick/2 {
	}
	end, after, outerEnd := clock(), work(), clock()
	if did := after - before; did < end-begin || did > outerEnd-outerBegin {
		t.Errorf("work of %s to %s counts as %s", end-begin, outerEnd-outerBegin, did)
	}
}

func TestIdleTimeGrows(t *testing.T) {
	before, err := Idle()
	if err != nil {
		t.Fatal(err)
	}
	after, err := Idle()
	// The kernel's own number goes back a little when a core's wait for a disk ends while it is read.
	if err != nil || before <= 0 || after < before-time.Second {
		t.Errorf("idle time went from %s to %s (%v)", before, after, err)
	}
}
