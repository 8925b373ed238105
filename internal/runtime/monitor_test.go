package runtime

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/process"
	"berth/test/timeouts"
	"berth/test/volume"
)

// TestNoDescriptorLeaks looks from inside a container and an exec: what a runtime inherits, they may.
func TestNoDescriptorLeaks(t *testing.T) {
	g := newRig(t)
	show := g.program("show", "ls /proc/self/fd | tr '\\n' ' ' > "+g.logs+"/fds\nenv > "+g.logs+"/env\n"+
		"cat /proc/self/oom_score_adj > "+g.logs+"/adj\nexec "+host.runtime+" \"$@\"\n")
	ctr := g.run("cd /proc/self/fd; echo *; sleep 1000", func(c *Create) { c.Handler.Path = show })
	g.hasSaid(ctr, "\n")
	if got := g.said(ctr); got != "0 1 2 3\n" && got != "0 1 2\n" { // 3 is the directory that is being read
		t.Errorf("in the container: %q", got)
	}
	if out, _ := g.exec(ctr, "for f in /proc/$$/fd/*; do echo -n \"${f##*/} \"; done"); out != "0 1 2 " &&
		out != "0 1 2 3 " {
		t.Errorf("in an exec: %q", out)
	}
	read := func(name string) string { return string(g.must(os.ReadFile(filepath.Join(g.logs, name))).([]byte)) }
	if got := read("fds"); got != "0 1 10 2 3 " && got != "0 1 2 3 " { // 3 is what ls reads, 10 may be the script
		t.Errorf("in a runtime: %q", got)
	}
	for _, name := range []string{"GOMAXPROCS", "GOGC", "NOTIFY_SOCKET", "BERTH_TEST_LEAK"} {
		if strings.Contains(read("env"), name+"=") {
			t.Errorf("%s is in a runtime's environment", name)
		}
	}
	if !strings.Contains(read("env"), "PATH=/") {
		t.Errorf("a runtime's environment has no PATH: %s", read("env"))
	}
	if got := strings.TrimSpace(read("adj")); got != "0" {
		t.Errorf("a runtime's oom_score_adj: %s", got)
	}
}

// TestMonitorFiles checks what the monitor leaves in the run directory for others.
func TestMonitorFiles(t *testing.T) {
	g := newRig(t)
	var p Process
	g.ok(json.Unmarshal(g.must(os.ReadFile(filepath.Join(g.cfg.dir(g.pod), "m.pid"))).([]byte), &p))
	began, err := process.Start(g.monitor())
	g.ok(err)
	if p.PID != g.monitor() || p.StartTime != began {
		t.Errorf("m.pid holds %+v; the monitor is %d, begun at %d", p, g.monitor(), began)
	}
	if exec.Command("sh", "-c", "echo -999 > /proc/self/oom_score_adj").Run() != nil {
		return // not allowed here
	}
	if adj := string(g.must(os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", g.monitor()))).([]byte)); adj != "-999\n" {
		t.Errorf("oom_score_adj of the monitor: %s", adj)
	}
}

// TestSignalsOfMonitor checks that a monitor does not end for the signals that everybody is sent, and that containers
// do.
func TestSignalsOfMonitor(t *testing.T) {
	g := newRig(t)
	for _, s := range []unix.Signal{unix.SIGTERM, unix.SIGHUP, unix.SIGINT} {
		g.ok(unix.Kill(g.monitor(), s))
	}
	ctr := g.run("", func(c *Create) { c.Spec.Process.Args = []string{"cat", "/proc/self/status"} })
	g.exit(ctr)
	said := g.said(ctr)
	for _, want := range []string{"SigBlk:\t0000000000000000\n", "SigIgn:\t0000000000000000\n"} {
		if !strings.Contains(said, want) {
			t.Errorf("a container begins without %q: %s", want, said)
		}
	}
	if _, ok := g.found(ctr); !ok {
		t.Error("the monitor is another one")
	}
}

// TestOneMonitor checks that a directory is never served by two monitors, and that one which cannot be reached is
// replaced.
func TestOneMonitor(t *testing.T) {
	g := newRig(t)
	ctr := g.run("sleep 1000")
	old := g.monitor()
	g.links.remove(g.pod).shut().end()
	g.ok(os.Remove(filepath.Join(g.cfg.dir(g.pod), "m.sock")))
	inv, err := g.Adopt(t.Context(), g.pod)
	g.ok(err)
	if inv.Containers[ctr].State != Running || g.monitor() == old {
		t.Errorf("after a take-over the monitor is %d (was %d) and holds %+v", g.monitor(), old, inv)
	}
}

// TestCreatePastDeadline has a runtime that hangs after it has made the container.
func TestCreatePastDeadline(t *testing.T) {
	g := newRig(t)
	slow := g.program("slow", host.runtime+" \"$@\"\ncase \"$*\" in *create*) sleep 7777;; esac\n")
	ctr := newID()
	g.made = append(g.made, ctr)
	h := g.handler
	h.Path = slow
	_, err := g.Create(t.Context(), g.pod,
		Create{Container: ctr, Handler: h, Spec: g.spec(ctr, "sleep 1000"), Deadline: timeouts.For(5 * time.Second)})
	if err == nil || !strings.Contains(err.Error(), "not done in time") {
		t.Fatalf("create: %v", err)
	}
	data := g.must(os.ReadFile(filepath.Join(g.cfg.bundle(g.pod, ctr), "runtime.pid"))).([]byte)
	g.ends(g.must(strconv.Atoi(strings.TrimSpace(string(data)))).(int), "the container's init")
	if pids, _ := g.cfg.containerGroup(ctr).Pids(); len(pids) > 0 {
		t.Errorf("helpers live: %v", pids)
	}
}

// TestStartPastDeadline has a runtime that hangs before it starts the container.
func TestStartPastDeadline(t *testing.T) {
	g := newRig(t)
	slow := g.program("slow", "case \"$*\" in *start*) sleep 7777;; esac\nexec "+host.runtime+" \"$@\"\n")
	ctr := g.create("sleep 1000", func(c *Create) { c.Handler.Path = slow })
	began := time.Now()
	err := g.Start(t.Context(), g.pod, ctr, g.log(ctr), time.Second)
	if err == nil || !strings.Contains(err.Error(), "not done in time") {
		t.Fatalf("start: %v", err)
	}
	if took := time.Since(began); took > timeouts.For(40*time.Second) {
		t.Errorf("a start with a second to do it took %v", took)
	}
}

// TestLeftovers checks that what a container without a PID namespace of its own leaves behind ends with its first
// process.
func TestLeftovers(t *testing.T) {
	g := newRig(t)
	mark := "4" + newID()[:6]
	mark = strings.Map(func(r rune) rune {
		if r < '0' || r > '9' {
			return '1'
		}
		return r
	}, mark)
	ctr := g.run("(trap '' TERM HUP; sleep "+mark+") & (sleep "+mark+" >/dev/null 2>&1) & echo here; sleep 0.2; exit 3",
		func(c *Create) {
			c.Spec.Linux.Namespaces = []specs.LinuxNamespace{{Type: "mount"}}
		})
	began := time.Now()
	if e := g.exit(ctr); e.Code != 3 {
		t.Errorf("exit %+v", e)
	}
	if took := time.Since(began); took > timeouts.For(30*time.Second) {
		t.Errorf("the exit was told after %v", took)
	}
	g.within(time.Second, "what it left is gone", func() bool { return !g.alive("sleep", mark) })
}

// TestSweep checks that what no pod owns is ended: monitors, containers, and what a runtime remembers of them.
func TestSweep(t *testing.T) {
	g := newRig(t)
	kept, lost := g.run("sleep 1000"), g.run("sleep 1000")
	pid := g.processOf(lost).PID
	aside := filepath.Join(g.cfg.State, "aside")
	g.ok(os.Rename(g.cfg.bundle(g.pod, lost), aside)) // as if its record and directory had been lost
	live := func(pod string) bool { return pod == g.pod }
	handlers := func(string) (Handler, error) { return g.handler, nil }
	g.ok(g.Sweep(t.Context(), live, handlers))
	if _, err := os.Stat(filepath.Join(g.handler.Root, lost)); err == nil {
		t.Error("the runtime remembers a container that nobody owns")
	}
	g.ends(pid, "a container that nobody owns")
	if f, ok := g.found(kept); !ok || f.State != Running {
		t.Errorf("a container that is owned is %+v", f)
	}
	g.ok(os.Rename(aside, g.cfg.bundle(g.pod, lost)))
	g.links.remove(g.pod).shut()
	g.ok(g.Sweep(t.Context(), func(string) bool { return false }, handlers))
	if left, _ := os.ReadDir(g.handler.Root); len(left) > 0 {
		t.Errorf("the runtime remembers %v", left)
	}
	if pids, _ := g.cfg.monitorGroup(g.pod).Pids(); len(pids) > 0 {
		t.Errorf("monitors of a pod that is no more: %v", pids)
	}
}

// TestShutdownWithContainers checks that Shutdown leaves nothing alive, though it is meant for when all have ended.
func TestShutdownWithContainers(t *testing.T) {
	g := newRig(t)
	ctr := g.run("sleep 1000")
	pid := g.processOf(ctr).PID
	ctx, cancel := context.WithTimeout(t.Context(), timeouts.For(40*time.Second))
	defer cancel()
	g.ok(g.Shutdown(ctx, g.pod))
	g.ends(pid, "a container of the pod")
}

func zombie(pid int) bool {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return strings.Contains(string(data), ") Z ")
}

// TestFullDisk checks that a log without room holds nobody up, and says afterwards what it lacks.
func TestFullDisk(t *testing.T) {
	g := newRig(t)
	small := filepath.Join(g.logs, "small")
	g.ok(os.Mkdir(small, 0o755))
	g.ok(unix.Mount("tmpfs", small, "tmpfs", 0, "size=64k"))
	defer func() { g.ok(unix.Unmount(small, unix.MNT_DETACH)) }()
	ctr := g.create("seq 1 40000; sleep 1; echo behind; exec sleep 1000")
	g.ok(g.Start(t.Context(), g.pod, ctr, Log{Dir: small, Path: "log"}, deadline))
	path := filepath.Join(small, "log")
	g.within(10*time.Second, "the writer is through", func() bool {
		out, _ := g.exec(ctr, "cat /proc/1/cmdline")
		return strings.HasPrefix(out, "sleep")
	})
	before := entries(t, string(g.must(os.ReadFile(path)).([]byte)))
	for i, e := range before[:len(before)-1] {
		if e.text != fmt.Sprint(i+1) {
			t.Fatalf("entry %d is %+v", i, e)
		}
	}
	g.ok(os.Truncate(path, 0))
	if out, code := g.exec(ctr, "echo room > /proc/1/fd/1"); code != 0 {
		t.Fatal(out)
	}
	g.within(5*time.Second, "the log goes on", func() bool {
		data, _ := os.ReadFile(path)
		s := string(data)
		return strings.Contains(s, " stderr F [berth: the log could not be written, ") &&
			strings.HasSuffix(s, " stdout F room\n")
	})
}

// slowRoot is a root file system whose answers the test can delay or withhold.
func (g *rig) slowRoot() (dir string, disk *volume.Slow) {
	g.Helper()
	g.ok(volume.SlowAvailable())
	dir = filepath.Join(g.logs, "slow")
	g.ok(os.Mkdir(dir, 0o755))
	disk, err := volume.MountSlow(host.rootfs, dir)
	g.ok(err)
	g.Cleanup(func() { g.ok(disk.Close()) })
	return dir, disk
}

// onFrozenDisk is a directory on a disk that hangs from when freeze is called until thaw is.
func (g *rig) onFrozenDisk() (dir string, freeze, thaw func()) {
	g.Helper()
	disk, dir := filepath.Join(g.logs, "disk"), filepath.Join(g.logs, "frozen")
	g.ok(os.Mkdir(dir, 0o755))
	g.ok(exec.Command("truncate", "-s", "16M", disk).Run())
	g.ok(exec.Command("mke2fs", "-q", "-t", "ext4", disk).Run())
	if out, err := exec.Command("mount", "-o", "loop", disk, dir).CombinedOutput(); err != nil {
		g.Skipf("no loop device: %s", out)
	}
	thaw = func() { _ = exec.Command("fsfreeze", "-u", dir).Run() }
	g.Cleanup(func() { thaw(); g.ok(unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir, func() { g.ok(exec.Command("fsfreeze", "-f", dir).Run()) }, thaw
}

// TestStartedTwice has a start hang at its log, and asks for it again, as the next daemon does: both succeed, and the
// container runs once.
func TestStartedTwice(t *testing.T) {
	g := newRig(t)
	dir, freeze, thaw := g.onFrozenDisk()
	ctr := g.create("echo begun; sleep 1000")
	freeze()
	started := make(chan error, 2)
	for range cap(started) {
		go func() { started <- g.Start(t.Context(), g.pod, ctr, Log{Dir: dir, Path: "log"}, deadline) }()
	}
	select {
	case err := <-started:
		t.Errorf("the disk does not hang: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	thaw()
	for range cap(started) {
		g.ok(<-started)
	}
	g.ok(g.Start(t.Context(), g.pod, ctr, Log{Dir: dir, Path: "log"}, deadline))
	g.within(15*time.Second, "it has begun", func() bool {
		text, _ := os.ReadFile(filepath.Join(dir, "log"))
		return strings.Count(string(text), "begun\n") == 1
	})
	g.ok(g.KillAll(t.Context(), g.pod, ctr))
	if e := g.exit(ctr); e.Signal != 9 {
		t.Errorf("exit %+v", e)
	}
	g.ok(g.Start(t.Context(), g.pod, ctr, Log{Dir: dir, Path: "log"}, deadline)) // it was started, and has ended since
}

// TestHungLogDisk freezes the file system of one container's log: all but its log goes on.
func TestHungLogDisk(t *testing.T) {
	for _, terminal := range []bool{false, true} {
		t.Run(fmt.Sprintf("terminal=%v", terminal), func(t *testing.T) { hangLogDisk(t, terminal) })
	}
}

func hangLogDisk(t *testing.T, terminal bool) {
	g := newRig(t)
	frozen, freeze, thaw := g.onFrozenDisk()
	ctr := g.create("while :; do echo x; done", func(c *Create) { c.Terminal = terminal })
	other := g.run("while read line; do echo got $line; done", func(c *Create) { c.Stdin = true })
	g.ok(g.Start(t.Context(), g.pod, ctr, Log{Dir: frozen, Path: "log"}, deadline))
	freeze()
	time.Sleep(300 * time.Millisecond)
	if out, code := g.exec(other, "echo hi"); out != "hi\n" || code != 0 {
		t.Errorf("exec beside a hung log: %q, %d", out, code)
	}
	g.ok(os.WriteFile(filepath.Join(g.cfg.bundle(g.pod, other), "stdin"), []byte("line\n"), 0))
	g.hasSaid(other, "got line\n")
	began := time.Now()
	g.ok(g.KillAll(t.Context(), g.pod, ctr))
	if e := g.exit(ctr); e.Signal != 9 {
		t.Errorf("exit %+v", e)
	}
	g.ok(g.Delete(t.Context(), g.pod, ctr, g.handler))
	if took := time.Since(began); took > timeouts.For(30*time.Second) {
		t.Errorf("kill and delete took %v", took)
	}
	c, err := g.links.monitor(t.Context(), g.pod)
	g.ok(err)
	if err := c.ping(t.Context()); err != nil {
		t.Errorf("the monitor says no more what there is: %v", err)
	}
	if out, code := g.exec(other, "echo hi"); out != "hi\n" || code != 0 {
		t.Errorf("exec after the other was deleted: %q, %d", out, code)
	}
	thaw()
}

// TestStartWhoseRuntimeIsKilled kills the runtime that starts a container before it has let it go, and after. The
// container runs once, whatever comes of the runtime.
func TestStartWhoseRuntimeIsKilled(t *testing.T) {
	for name, text := range map[string]string{
		"before": "[ -e $0.once ] || { : >$0.once; kill -9 $$; }\n",
		"after":  host.runtime + " \"$@\"; kill -9 $$\n",
		"before, and then late": "[ -e $0.once ] || { : >$0.once; (sleep 0.3; " + host.runtime +
			" \"$@\") & kill -9 $$; }\nsleep 0.6\n",
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t)
			path := g.program("killed", "case \"$*\" in *\" start \"*) "+text+";; esac\nexec "+host.runtime+" \"$@\"\n")
			ctr := g.create("echo begun; sleep 1000", func(c *Create) { c.Handler.Path = path })
			g.ok(g.Start(t.Context(), g.pod, ctr, g.log(ctr), deadline))
			g.hasSaid(ctr, "begun\n")
			g.ok(g.KillAll(t.Context(), g.pod, ctr))
			if e := g.exit(ctr); e.Signal != 9 || e.StartedAt.IsZero() {
				t.Errorf("exit %+v", e)
			}
			if said := g.said(ctr); said != "begun\n" {
				t.Errorf("it said %q", said)
			}
		})
	}
	t.Run("always", func(t *testing.T) {
		g := newRig(t)
		path := g.program("killed", "case \"$*\" in *\" start \"*) kill -9 $$;; esac\nexec "+host.runtime+" \"$@\"\n")
		ctr := g.create("echo begun; sleep 1000", func(c *Create) { c.Handler.Path = path })
		err := g.Start(t.Context(), g.pod, ctr, g.log(ctr), deadline)
		if err == nil || !strings.Contains(err.Error(), "killed by signal 9") {
			t.Errorf("start: %v", err)
		}
	})
}

// TestMonitorKilledInAStart kills a monitor together with the runtime that it has start a container, and has the next
// one start it; and once more when the runtime has come through by then, so that the container runs already, and when
// it has let the process go and not removed the FIFO by which it does. On a slow disk a process that was let go takes
// long to execute its program, so that the next monitor cannot see that it was.
func TestMonitorKilledInAStart(t *testing.T) {
	through := host.runtime + " \"$@\"; kill -9 $PPID; sleep 1000"
	// The process of runc waits in an open of the FIFO, and comes back from that when the runtime has opened it too. If
	// the runtime is gone by the time the process writes to it, the process ends. That of crun reads what the runtime
	// writes.
	between := "PID=$(cat runtime.pid); kill -STOP $PID; exec 3<>$ROOT/$CTR/exec.fifo; kill -9 $PPID; " +
		"head -c 1 <&3 >/dev/null; rm $ROOT/$CTR/exec.fifo; exit 0"
	half := "exec 3<>$ROOT/$CTR/exec.fifo; echo >&3; sleep 0.2; kill -9 $PPID; sleep 1000"
	for name, c := range map[string]struct {
		text  string
		delay time.Duration
	}{
		"before it is let go":      {"kill -9 $PPID; sleep 1000", 0},
		"after":                    {through, 0},
		"after, on a slow disk":    {through, 300 * time.Millisecond},
		"while it is let go":       {between, 0},
		"half way":                 {half, 0},
		"half way, on a slow disk": {half, 300 * time.Millisecond},
	} {
		if c.text == between && os.Getenv(underCrun) != "" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			g := newRig(t)
			root, disk := g.slowRoot()
			path := g.program("killing", "ROOT="+g.handler.Root+"; for CTR; do :; done\n"+
				"case \"$*\" in *\" start \"*) [ -e $0.once ] || { : >$0.once; "+c.text+"; };; esac\n"+
				"exec "+host.runtime+" \"$@\"\n")
			ctr := g.create("echo begun; sleep 1000", func(cr *Create) {
				cr.Handler.Path, cr.Spec.Root.Path = path, root
			})
			disk.Delay(c.delay)
			_ = g.Start(t.Context(), g.pod, ctr, g.log(ctr), deadline) // the monitor is lost while it works on it, or not
			time.Sleep(500 * time.Millisecond)
			g.ok(unix.Kill(g.processOf(ctr).PID, unix.SIGCONT))
			g.within(15*time.Second, "the next monitor starts it", func() bool {
				err := g.Start(t.Context(), g.pod, ctr, g.log(ctr), deadline)
				if errdefs.IsUnavailable(err) { // it has not taken over yet
					return false
				}
				g.ok(err)
				return true
			})
			g.hasSaid(ctr, "begun\n")
			g.ok(g.KillAll(t.Context(), g.pod, ctr))
			if e := g.exit(ctr); !honest(e, 128+9) {
				t.Errorf("exit %+v", e)
			}
			if said := g.said(ctr); said != "begun\n" {
				t.Errorf("it said %q", said)
			}
		})
	}
}

// TestOutputBeforeARepeatedStart has the process of a container execute its program only when the next monitor has
// taken it for one that waits, and write before the start is asked for again: what it wrote is in the log.
func TestOutputBeforeARepeatedStart(t *testing.T) {
	g := newRig(t)
	root, disk := g.slowRoot()
	path := g.program("killing", "for CTR; do :; done; case \"$*\" in *\" start \"*) [ -e $0.once ] || { : >$0.once; "+
		"exec 3<>"+g.handler.Root+"/$CTR/exec.fifo; echo >&3; sleep 0.2; kill -9 $PPID; sleep 1000; };; esac\n"+
		"exec "+host.runtime+" \"$@\"\n")
	ctr := g.create("echo begun >&2; echo begun; sleep 1000", func(c *Create) {
		c.Handler.Path, c.Spec.Root.Path = path, root
	})
	g.within(10*time.Second, "it waits for its FIFO", func() bool {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", g.processOf(ctr).PID))
		g.ok(err)
		in := string(data) // runc opens it, crun selects
		return in == "wait_for_partner" || in == "fifo_open" || strings.HasPrefix(in, "poll_schedule_timeout")
	})
	goOn := disk.Hang()
	defer goOn()
	if err := g.Start(t.Context(), g.pod, ctr, g.log(ctr), deadline); err == nil {
		t.Fatal("the monitor was not killed")
	}
	g.within(10*time.Second, "the next monitor takes it for one that waits", func() bool {
		if _, err := g.links.monitor(t.Context(), g.pod); err != nil {
			return false
		}
		f, ok := g.found(ctr)
		return ok && f.State == Created
	})
	goOn()
	fifo := filepath.Join(g.cfg.bundle(g.pod, ctr), "stdout")
	f := g.must(os.OpenFile(fifo, os.O_RDONLY|unix.O_NONBLOCK, 0)).(*os.File)
	defer f.Close()
	g.within(10*time.Second, "it writes", func() bool {
		n, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCINQ)
		g.ok(err)
		return n > 0
	})
	g.ok(g.Start(t.Context(), g.pod, ctr, g.log(ctr), deadline))
	g.within(5*time.Second, "what it wrote is in the log", func() bool { return g.said(ctr) == "begun\nbegun\n" })
	g.ok(g.KillAll(t.Context(), g.pod, ctr))
	if e := g.exit(ctr); !honest(e, 128+9) {
		t.Errorf("exit %+v", e)
	}
}
