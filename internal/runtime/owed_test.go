package runtime

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/volume"
)

// owes makes n containers of what one is owed that was deleted: as many that all have one log.
func (g *rig) owes(ctr string, n int) {
	g.Helper()
	from := owedDir(&g.cfg, g.pod, ctr)
	info := g.must(os.Stat(filepath.Join(from, journalFile))).(os.FileInfo)
	journal := g.must(os.ReadFile(filepath.Join(from, journalFile))).([]byte)
	for i := range n {
		to := owedDir(&g.cfg, g.pod, fmt.Sprintf("%064x", i))
		g.ok(os.MkdirAll(to, 0o700))
		g.ok(os.Link(filepath.Join(from, bundleFile), filepath.Join(to, bundleFile)))
		g.ok(os.WriteFile(filepath.Join(to, journalFile), journal[:os.Getpagesize()], 0o600))
		g.ok(os.Truncate(filepath.Join(to, journalFile), info.Size()))
	}
}

// status is a line of a process's status, in words.
func (g *rig) status(pid int, name string) string {
	g.Helper()
	data := g.must(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))).([]byte)
	_, after, _ := strings.Cut(string(data), name+":")
	line, _, _ := strings.Cut(after, "\n")
	return strings.TrimSpace(line)
}

// owing has a container be deleted whose log is owed something. path is what fills its disk.
func (g *rig) owing() (ctr, path string) {
	g.Helper()
	ctr, path = g.dropsItsLastWords(false)
	time.Sleep(100 * time.Millisecond)
	g.ok(g.Delete(g.Context(), g.pod, ctr, g.handler))
	return ctr, path
}

// paid waits until nothing is owed.
func (g *rig) paid(ctr string) {
	g.Helper()
	owed := filepath.Dir(owedDir(&g.cfg, g.pod, ctr))
	g.within(60*time.Second, "all is paid", func() bool {
		left, _ := os.ReadDir(owed)
		return len(left) == 0
	})
}

// costs checks what the monitor has, and not only what it had at its start.
func (g *rig) costs(threads, descriptors, kib int) {
	g.Helper()
	pid := g.monitor()
	fds, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	var has, peak int
	_, err1 := fmt.Sscan(g.status(pid, "Threads"), &has)
	_, err2 := fmt.Sscan(g.status(pid, "VmHWM"), &peak)
	g.ok(errors.Join(err1, err2))
	g.Logf("the monitor has %d threads, %d descriptors, and had %d KiB", has, len(fds), peak)
	if has > threads || len(fds) > descriptors || peak > kib {
		g.Errorf("that is more than %d threads, %d descriptors, %d KiB", threads, descriptors, kib)
	}
}

// TestManyOwed has a monitor take over what the logs of very many deleted containers are owed, while the disk is full:
// it takes little, and pays all when there is room. That it answers first is TestOwedToADiskThatHangs.
func TestManyOwed(t *testing.T) {
	g := newRig(t)
	volume.Mounted(t, g.logs, volume.Ext4, 16, "-m", "0")
	ctr, path := g.owing()
	const many = 10_000
	g.owes(ctr, many)
	began := time.Now()
	g.replaceMonitor(kill)
	t.Logf("another took over after %v", time.Since(began))
	time.Sleep(time.Second)
	g.costs(20, 60, 64<<10)
	g.ok(os.Remove(path))
	g.paid(ctr)
	g.costs(20, 60, 64<<10)
	if n := strings.Count(g.said(ctr), "3 lines were dropped"); n != many+1 {
		t.Errorf("%d notices, not %d", n, many+1)
	}
}

// TestOwedToADiskThatHangs has a monitor take over what is owed to many logs whose disk answers nothing: it serves, and
// few threads hang.
func TestOwedToADiskThatHangs(t *testing.T) {
	if err := volume.SlowAvailable(); err != nil {
		t.Skip(err)
	}
	g := newRig(t)
	below := t.TempDir()
	volume.Mounted(t, below, volume.Ext4, 16, "-m", "0")
	disk := g.must(volume.MountSlow(below, g.logs)).(*volume.Slow)
	defer disk.Close()
	ctr, path := g.owing()
	const many = 200
	g.owes(ctr, many)
	goOn := disk.Hang()
	defer goOn()
	g.replaceMonitor(kill)
	time.Sleep(time.Second)
	g.costs(30, 80, 64<<10)
	if _, err := g.Adopt(t.Context(), g.pod); err != nil {
		t.Error(err)
	}
	goOn()
	g.ok(os.Remove(path))
	g.paid(ctr)
	if n := strings.Count(g.said(ctr), "3 lines were dropped"); n != many+1 {
		t.Errorf("%d notices, not %d", n, many+1)
	}
}

// TestOwedToALogThatMoved has the log of a deleted container be renamed, alone or with its directory, and another's be
// at its path: the next monitor finds it where it can, and writes nothing to the other.
func TestOwedToALogThatMoved(t *testing.T) {
	for _, with := range []string{"", "its directory"} {
		t.Run(with, func(t *testing.T) {
			g := newRig(t)
			volume.Mounted(t, g.logs, volume.Ext4, 16, "-m", "0")
			ctr, path := g.owing()
			g.killMonitorAfter(func() {
				log := filepath.Join(g.logs, g.log(ctr).Path)
				from := map[bool]string{true: log, false: filepath.Dir(log)}[with == ""]
				g.ok(os.Rename(from, from+".old"))
				g.ok(os.Remove(path))
				g.ok(os.MkdirAll(filepath.Dir(log), 0o755))
				g.ok(os.WriteFile(log, []byte("another's\n"), 0o640))
			})
			g.paid(ctr)
			if other := g.logged(ctr); other != "another's\n" {
				t.Errorf("the other's log has %q", other)
			}
			old, _ := os.ReadFile(filepath.Join(g.logs, g.log(ctr).Path+".old"))
			if n := strings.Count(string(old), "3 lines were dropped"); with == "" && n != 1 {
				t.Errorf("the log says %d times what was dropped", n)
			}
		})
	}
}

// killMonitorAfter does what is to be done while the monitor stands still, and kills it.
func (g *rig) killMonitorAfter(do func()) {
	g.Helper()
	g.replaceMonitor(func(pid int) error {
		g.ok(unix.Kill(pid, unix.SIGSTOP))
		g.within(5*time.Second, "the monitor is stopped", func() bool { return stopped(pid) })
		do()
		return kill(pid)
	})
}

// TestOwedToALimitedLog has lines be dropped by a log's limit and by its full disk, and the container be deleted before
// the monitor is killed, twice: the log says of each line why it is not there, and once.
func TestOwedToALimitedLog(t *testing.T) {
	g := newRig(t)
	volume.Mounted(t, g.logs, volume.Ext4, 16, "-m", "0")
	const lines = 4000
	ctr := g.limitedTo(4<<10, 48<<10, fmt.Sprintf("while ! [ -e /tmp/go ]; do usleep 10000; done; i=0; "+
		"while [ $i -lt %d ]; do echo line $i 00000000000000000000.; i=$((i+1)); done; exit 3", lines))
	path := g.must(volume.Fill(g.logs)).(string)
	_, _ = g.Exec(g.Context(), g.pod, ctr, Exec{Process: shellProcess("touch /tmp/go"), Timeout: time.Minute})
	g.exit(ctr)
	time.Sleep(100 * time.Millisecond)
	g.ok(g.Delete(t.Context(), g.pod, ctr, g.handler))
	g.replaceMonitor(kill)
	time.Sleep(100 * time.Millisecond)
	g.replaceMonitor(kill)
	g.ok(os.Remove(path))
	g.paid(ctr)
	there, unwritten, over := 0, 0, 0
	for _, e := range entries(t, g.logged(ctr)) {
		var n, size int
		switch {
		case strings.HasPrefix(e.text, "line "):
			there++
		case strings.Contains(e.text, "could not be written"):
			g.must(fmt.Sscanf(e.text, "[berth: the log could not be written, %d lines", &n))
			unwritten += n
		default:
			g.must(fmt.Sscanf(e.text, "[berth: %d lines (%d bytes) were dropped: the log is limited", &n, &size))
			over += n
		}
	}
	t.Logf("%d lines are there, %d were dropped for the disk, %d for the limit", there, unwritten, over)
	if there+unwritten+over != lines || unwritten == 0 || over == 0 {
		t.Errorf("that is %d, not %d of both kinds", there+unwritten+over, lines)
	}
}

// TestOwedIsBeingMoved has the daemon be killed at each step of moving what is owed, or move it while the next monitor
// takes over the container itself: it is said once.
func TestOwedIsBeingMoved(t *testing.T) {
	for name, step := range map[string]func(dir, owed string) error{
		"made":   func(_, owed string) error { return os.MkdirAll(owed, 0o700) },
		"bundle": func(dir, owed string) error { return linked(dir, owed, bundleFile) },
		"while":  func(dir, owed string) error { return linked(dir, owed, bundleFile, journalFile) },
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t)
			volume.Mounted(t, g.logs, volume.Ext4, 16, "-m", "0")
			ctr, path := g.dropsItsLastWords(false)
			g.killMonitorAfter(func() { g.ok(step(g.cfg.bundle(g.pod, ctr), owedDir(&g.cfg, g.pod, ctr))) })
			time.Sleep(100 * time.Millisecond)
			g.ok(g.Delete(t.Context(), g.pod, ctr, g.handler))
			g.ok(os.Remove(path))
			g.saysOnce(ctr)
		})
	}
}

// linked has files be in another directory, too: who opens them in one and then in the other finds them in both, as
// when they are moved meanwhile.
func linked(dir, to string, files ...string) error {
	err := os.MkdirAll(to, 0o700)
	for _, f := range files {
		err = errors.Join(err, os.Link(filepath.Join(dir, f), filepath.Join(to, f)))
	}
	return err
}
