package runtime

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/process"
	"berth/test/timeouts"
)

func TestExits(t *testing.T) {
	g := newRig(t)
	limit := int64(16 << 20)
	limited := func(c *Create) { c.Spec.Linux.Resources.Memory = &specs.LinuxMemory{Limit: &limit, Swap: &limit} }
	for _, tt := range []struct {
		name, script string
		change       func(*Create)
		signal, code int
		oom          bool
	}{
		{name: "zero", script: "true"},
		{name: "code", script: "exit 42", code: 42},
		// as pid 1 it only dies of what is not ignored
		{name: "signal", script: "kill -TERM $$; sleep 5", code: 143, signal: 15},
		{name: "kill", script: "sleep 1000", code: 137, signal: 9},
		{name: "kill of a limited one", script: "sleep 1000", change: limited, code: 137, signal: 9},
		{name: "oom", script: "exec tail /dev/zero", change: limited, code: 137, signal: 9, oom: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := time.Now()
			ctr := g.run(tt.script, func(c *Create) {
				if tt.change != nil {
					tt.change(c)
				}
				if tt.name == "signal" {
					c.Spec.Linux.Namespaces = []specs.LinuxNamespace{{Type: "mount"}}
				}
			})
			if !tt.oom && tt.signal == 9 {
				g.ok(g.Signal(t.Context(), g.pod, ctr, 9))
			}
			e := g.exit(ctr)
			if int(e.Code) != tt.code || e.Signal != tt.signal || e.OOMKilled != tt.oom || e.Unknown {
				t.Errorf("exit %+v", e)
			}
			if e.StartedAt.Before(before) || e.FinishedAt.Before(e.StartedAt) || e.FinishedAt.After(time.Now()) {
				t.Errorf("it began before %v, and its times are %v, %v", before, e.StartedAt, e.FinishedAt)
			}
		})
	}
}

// TestOOMWithoutAMonitor has the kernel kill a container for want of memory while its monitor is stopped, which is
// killed or replaced then: the end is told as what it was.
func TestOOMWithoutAMonitor(t *testing.T) {
	for _, replaced := range []bool{false, true} {
		t.Run(fmt.Sprintf("replaced=%v", replaced), func(t *testing.T) {
			g := newRig(t)
			limit := int64(16 << 20)
			ctr := g.run("read go; exec tail /dev/zero", func(c *Create) {
				c.Stdin = true
				c.Spec.Linux.Resources.Memory = &specs.LinuxMemory{Limit: &limit, Swap: &limit}
			})
			p := g.processOf(ctr)
			if replaced {
				g.halt()
			} else {
				g.ok(unix.Kill(g.monitor(), unix.SIGSTOP))
			}
			g.ok(os.WriteFile(filepath.Join(g.cfg.bundle(g.pod, ctr), "stdin"), []byte("\n"), 0))
			g.within(10*time.Second, "it has ended", func() bool {
				_, ok := process.Ending(p.PID, p.StartTime, nil)
				return ok || !process.Alive(p.PID, p.StartTime)
			})
			if replaced {
				g.ok(g.AwaitExit(t.Context(), g.pod, ctr))
			} else {
				g.killMonitor()
			}
			if e := g.exit(ctr); e.Code != 137 || !e.OOMKilled {
				t.Errorf("exit %+v", e)
			}
		})
	}
}

func TestExec(t *testing.T) {
	g := newRig(t)
	ctr := g.run("sleep 1000")
	out, code := g.exec(ctr, "echo out; echo err >&2; exit 3")
	if out != "out\nerr\n" || code != 3 {
		t.Errorf("%q, %d", out, code)
	}
	if _, code := g.exec(ctr, "kill -KILL $$"); code != 137 {
		t.Errorf("killed: %d", code)
	}
	if _, err := g.Exec(t.Context(), g.pod, ctr,
		Exec{Process: &specs.Process{Args: []string{"/not/there"}, Cwd: "/"}}); err == nil {
		t.Error("a program that is not there was run")
	}
	// A child that keeps the streams open ends with the container, not with the exec.
	began := time.Now()
	if out, code := g.exec(ctr, "sleep 4343 & echo hi"); out != "hi\n" || code != 0 ||
		time.Since(began) > timeouts.For(30*time.Second) {
		t.Errorf("with a child that holds the streams: %q, %d after %v", out, code, time.Since(began))
	}
	g.execTimeout(ctr)
}

func (g *rig) execTimeout(ctr string) {
	mark := "98765"
	began := time.Now()
	res, err := g.Exec(g.Context(), g.pod, ctr,
		Exec{Process: shellProcess("trap '' TERM; sleep " + mark + " & sleep " + mark + "; wait"),
			Timeout: 700 * time.Millisecond})
	if err != nil || !res.TimedOut {
		g.Errorf("past its time: %+v, %v", res, err)
	}
	if took := time.Since(began); took > timeouts.For(30*time.Second) {
		g.Errorf("it took %v", took)
	}
	out, _ := g.exec(ctr, "for f in /proc/[0-9]*/cmdline; do cat $f; done")
	if has := []byte(out); len(has) == 0 || containsArg(has, mark) {
		g.Errorf("processes are left in the container: %q", out)
	}
	for _, dir := range []string{g.cfg.bundle(g.pod, ctr), g.cfg.containerGroup(ctr).Path()} {
		if left, _ := filepath.Glob(filepath.Join(dir, "*exec*")); len(left) > 1 { // the group of the child above
			g.Errorf("left of an exec: %v", left)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(g.cfg.bundle(g.pod, ctr), "process-*")); len(left) > 0 {
		g.Errorf("left of an exec: %v", left)
	}
}

func containsArg(cmdlines []byte, arg string) bool {
	for i := range cmdlines {
		if string(cmdlines[i:min(len(cmdlines), i+len(arg)+7)]) == "sleep\x00"+arg+"\x00" {
			return true
		}
	}
	return false
}

// TestDeleteWithoutMonitor checks that a container goes when nobody remembers it.
func TestDeleteWithoutMonitor(t *testing.T) {
	g := newRig(t)
	ctr := g.run("trap '' TERM; sleep 1000 & wait")
	p := g.processOf(ctr)
	l := g.links.remove(g.pod)
	l.shut().end()
	g.ok(unix.Kill(g.monitor(), unix.SIGKILL))
	g.ok(g.Delete(t.Context(), g.pod, ctr, g.handler))
	g.ends(p.PID, "the container")
	if _, err := os.Stat(filepath.Join(g.handler.Root, ctr)); err == nil {
		t.Error("the runtime remembers it")
	}
	g.ok(g.Delete(t.Context(), g.pod, ctr, g.handler))
	l.reap()
}
