package monitor

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/monitor/wire"
	proc "berth/internal/process"
)

// TestOpenProcessWithoutDescriptors has a process be opened while there is no descriptor for it, for a moment: it has
// not ended.
func TestOpenProcessWithoutDescriptors(t *testing.T) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	back := time.AfterFunc(openRest/2, func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Error(err)
		}
	})
	defer back.Stop()
	fd, err := openProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(fd)
	if _, err := openProcess(1 << 30); err != unix.ESRCH && err != unix.EINVAL {
		t.Errorf("no process: %v", err)
	}
}

// TestHostWithoutDescriptors has a runtime name the process of another container while there is no descriptor to look
// at it: the new container is a guest of that one.
func TestHostWithoutDescriptors(t *testing.T) {
	start, err := proc.Start(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	m := &Monitor{containers: map[string]*container{}}
	m.containers["box"] = &container{m: m, id: "box", state: wire.Running,
		process: wire.Process{PID: os.Getpid(), StartTime: start}}
	guest := &container{m: m, id: "guest"}
	m.containers[guest.id] = guest
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	host, _ := m.hostOf(guest, os.Getpid())
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if host == nil || host.id != "box" {
		t.Errorf("its host is %v", host)
	}
	m.containers["box"].process.StartTime++ // it has ended, and this process has its pid by now
	if host, _ := m.hostOf(guest, os.Getpid()); host != nil {
		t.Errorf("the host of a process of its own is %v", host.id)
	}
}
