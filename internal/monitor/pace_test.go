package monitor

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// priorities are those of all threads of this process.
func priorities(t *testing.T) map[int]int {
	t.Helper()
	all := map[int]int{}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range threads {
		id, _ := strconv.Atoi(d.Name())
		if n, err := unix.Getpriority(unix.PRIO_PROCESS, id); err == nil {
			all[id] = 20 - n // the system call has no negative results
		}
	}
	return all
}

func wantPriorities(t *testing.T, want int) {
	t.Helper()
	for id, n := range priorities(t) {
		if n != want {
			t.Errorf("thread %d has priority %d, want %d", id, n, want)
		}
	}
}

// TestPace wants a monitor to stand back while it uses much processor time for what it takes, and no longer, and the
// programs that it starts to have the priority that it had.
func TestPace(t *testing.T) {
	var p pace
	compute := func() { // until it has used much, on a busy machine too
		began, used := time.Now(), processorTime()
		for gone := time.Duration(0); gone < 2*paceTime || processorTime()-used < gone/10; gone = time.Since(began) {
		}
	}
	n, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		t.Fatal(err)
	}
	usual := 20 - n
	defer func() { p.set(false) }()
	p.count(paceBytes)
	p.aside(func() {
		compute()
		p.count(paceBytes)
		wantPriorities(t, usual) // a program could inherit it
	})
	compute()
	p.count(paceBytes - 1)
	wantPriorities(t, usual) // it does not look at the time for each piece
	p.count(1)
	wantPriorities(t, usual+paceNice)
	own := func() (out []byte, err error) {
		p.aside(func() {
			p.set(true) // leaves this thread alone
			out, err = exec.Command("nice").Output()
		})
		return out, err
	}
	if out, err := own(); err != nil || strings.TrimSpace(string(out)) != strconv.Itoa(usual) {
		t.Errorf("a program is started at priority %s, %v", out, err)
	}
	wantPriorities(t, usual+paceNice)
	for range 50 { // other tests compute, too
		time.Sleep(4 * paceTime)
		for range paceTakes {
			p.count(1)
		}
		if !p.back {
			break
		}
	}
	wantPriorities(t, usual)
}
