package monitor

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/monitor/wire"
	proc "berth/internal/process"
	"berth/test/timeouts"
)

// inherited is the run directory of a pod whose monitor was killed: a container that runs, with an exec under way, one
// that has ended with code 7, and one that was never created.
type inherited struct {
	*testing.T
	cfg  Config
	runs wire.Process
}

const runsID, endedID, neverID = "takeover-runs", "takeover-ended", "takeover-never"

func inherit(t *testing.T) *inherited {
	t.Helper()
	p := &inherited{T: t, cfg: Config{Dir: t.TempDir(), Exits: t.TempDir(), Tracking: t.TempDir(), Group: "none"}}
	cmd := exec.Command("sleep", "1000")
	p.ok(cmd.Start())
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	start, err := proc.Start(cmd.Process.Pid)
	p.ok(err)
	p.runs = wire.Process{PID: cmd.Process.Pid, StartTime: start}
	for _, id := range []string{runsID, endedID, neverID} {
		p.ok(os.MkdirAll(p.path(id), 0o700))
		p.ok(writeJSON(p.path(id, bundleFile), &wire.Bundle{Stdin: true, Started: time.Now().UnixNano()}))
		if id != neverID {
			p.ok(writeJSON(p.path(id, pidFile), &p.runs))
		}
	}
	for _, name := range streamNames {
		p.ok(unix.Mkfifo(p.path(runsID, name), 0o600))
		p.ok(unix.Mkfifo(p.path(endedID, name), 0o600))
		f, err := os.OpenFile(p.path(runsID, name), os.O_RDWR, 0) // as the container has it open
		p.ok(err)
		t.Cleanup(func() { _ = f.Close() })
	}
	j, err := makeJournal(p.path(runsID))
	p.ok(err)
	j.close()
	p.ok(writeJSON(p.path(endedID, exitFile), &wire.Exit{Code: 7}))
	return p
}

func (p *inherited) ok(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

func (p *inherited) path(parts ...string) string {
	return filepath.Join(append([]string{p.cfg.Dir, "c"}, parts...)...)
}

// monitor makes the next one.
func (p *inherited) monitor() *Monitor {
	return &Monitor{cfg: p.cfg, pace: &pace{}, containers: map[string]*container{}, spare: make(chan *buffer, 1)}
}

// letGo has a monitor not see the end of the container that runs, as if it were killed before.
func (p *inherited) letGo(m *Monitor) {
	if c := m.containers[runsID]; c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.ending = true
	}
}

// whole checks that a monitor has taken up everything.
func (p *inherited) whole(m *Monitor) {
	p.Helper()
	if _, never := m.containers[neverID]; never || len(m.containers) != 2 {
		p.Errorf("it has %v", m.containers)
		return
	}
	c := m.containers[endedID]
	if c.state != wire.Exited || c.exit == nil || c.exit.Code != 7 {
		p.Errorf("the one that has ended is %s, with %+v", c.state, c.exit)
	}
	c = m.containers[runsID]
	c.out.mu.Lock()
	streams := c.out.left
	c.out.mu.Unlock()
	if !c.alive() || !c.how.(*native).held() || streams != 2 || c.stdin < 0 || c.out.log.kept == (fileID{}) {
		p.Errorf("the one that runs: held %v, %d streams, stdin %d, journal %v", c.how.(*native).held(), streams, c.stdin,
			c.out.log.kept)
	}
	for end := time.Now().Add(timeouts.For(10 * time.Second)); ; time.Sleep(time.Millisecond) {
		if _, err := os.Lstat(p.path(runsID, "exec-3.log")); err != nil {
			return
		}
		if time.Now().After(end) {
			p.Error("an exec that was under way is not ended")
			return
		}
	}
}

// TestTakeoverThatLacksADescriptor has each of the calls in turn fail for a moment by which a monitor that takes over
// opens something: it takes up everything all the same. Where the lack lasts, it ends with an error that says so, and
// the next one takes up everything.
func TestTakeoverThatLacksADescriptor(t *testing.T) {
	p := inherit(t)
	take := func(call uint32, from, times int) (failed int, err error) {
		p.ok(os.WriteFile(p.path(runsID, "exec-3.log"), nil, 0o600))
		m := p.monitor()
		defer p.letGo(m)
		failed = failingFrom(t, call, unix.EMFILE, from, times, func() { err = m.takeOver() })
		if err == nil {
			p.whole(m)
		}
		return failed, err
	}
	for _, call := range []uint32{unix.SYS_OPENAT, unix.SYS_PIDFD_OPEN} {
		n := 0
		for failed := 1; failed > 0 && !t.Failed(); n++ {
			var err error
			if failed, err = take(call, n, 1); err != nil {
				t.Errorf("call %d of number %d fails: %v", n, call, err)
			}
		}
		if n < 2 {
			t.Errorf("no call of number %d has failed", call)
		}
	}
	for call, from := range map[uint32]int{unix.SYS_OPENAT: 5, unix.SYS_PIDFD_OPEN: 0} {
		if _, err := take(call, from, 1<<30); !errors.Is(err, unix.EMFILE) {
			t.Errorf("a lack that lasts: %v", err)
		}
	}
	if _, err := take(unix.SYS_OPENAT, 0, 0); err != nil {
		t.Error(err)
	}
}

// TestTakeoverOfFilesThatMakeNoSense finds containers whose files no monitor can read, now or later: they are left out,
// and the others are taken up.
func TestTakeoverOfFilesThatMakeNoSense(t *testing.T) {
	p := inherit(t)
	for _, name := range []string{pidFile, bundleFile} {
		id := "takeover-bad-" + name
		p.ok(os.Mkdir(p.path(id), 0o700))
		p.ok(writeJSON(p.path(id, bundleFile), &wire.Bundle{}))
		p.ok(writeJSON(p.path(id, pidFile), &p.runs))
		p.ok(os.WriteFile(p.path(id, name), []byte("{"), 0o600))
	}
	p.ok(os.WriteFile(p.path("takeover-no-directory"), nil, 0o600))
	p.ok(os.WriteFile(p.path(runsID, "exec-3.log"), nil, 0o600))
	m := p.monitor()
	defer p.letGo(m)
	p.ok(m.takeOver())
	p.whole(m)
}
