package cadvisor

import (
	"errors"
	"os"
	"testing"
	"time"
)

// A number that another device has been given gets its name.
func TestDeviceNamesAreReadAgain(t *testing.T) {
	const major, minor = 4001, 1 // which no device has
	defer deviceNames.Delete([2]uint32{major, minor})
	begin, reads, is := time.Now(), 0, "../../devices/loop0"
	read := func(string) (string, error) {
		reads++
		if is == "" {
			return "", errors.New("no such device")
		}
		return is, nil
	}
	for _, c := range []struct {
		after time.Duration
		is    string
		want  string
		reads int
	}{
		{0, "../../devices/loop0", "/dev/loop0", 1},
		{knownFor - 1, "../../devices/sda", "/dev/loop0", 1},
		{knownFor, "../../devices/sda", "/dev/sda", 2},
		{2 * knownFor, "", "", 3},
	} {
		is = c.is
		if got := nameAt(major, minor, begin.Add(c.after), read); got != c.want || reads != c.reads {
			t.Errorf("after %v: %q after %d reads, wanted %q after %d", c.after, got, reads, c.want, c.reads)
		}
	}
}

func TestDescriptorsAreCountedUpToABound(t *testing.T) {
	for name, told := range map[string]bool{"by the kernel": true, "by us": false} {
		p := &Processes{Descriptors: Count{Known: true}, Sockets: Count{Known: true}}
		if !p.add(mostDescriptors, told) || !p.Descriptors.Known || !p.Sockets.Known {
			t.Errorf("%s: %d are not told: %+v", name, mostDescriptors, p)
		}
		if goOn := p.add(1, told); goOn != told || p.Descriptors.Known != told || p.Sockets.Known {
			t.Errorf("%s: one more, go on %v: %+v", name, goOn, p)
		}
	}
}

func TestCountsProcesses(t *testing.T) {
	const none = 1 << 30 // above every pid
	p := CountProcesses([]int{os.Getpid(), none}, os.Getpid())
	if p.Count != 2 || !p.Descriptors.Known || p.Descriptors.Count < 3 || !p.Sockets.Known || !p.MaxOpenFiles.Known {
		t.Errorf("%+v", p)
	}
}

// A process without descriptors is as good as one whose kernel says so.
func TestNoDescriptors(t *testing.T) {
	if n, told := openFiles(t.TempDir() + "/none"); n != 0 || !told {
		t.Errorf("one that has ended: %d, %v", n, told)
	}
	if n, told := openFiles("/proc/2/fd"); n != 0 || !told { // the kernel's own
		t.Errorf("one of the kernel: %d, %v", n, told)
	}
}
