package cadvisor

import (
	"os"
	"testing"
)

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
