package runtime

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"
)

// TestLeave has a daemon end in the middle of a start and of an exec: the monitor finishes both, as when the daemon is
// killed. Before it ends, an exec whose caller goes away is killed.
func TestLeave(t *testing.T) {
	g := newRig(t)
	path := g.program("slow", "case \"$*\" in *\" start \"*) [ -e $0.now ] || { : >$0.here; sleep 1; };; esac\n"+
		"exec "+host.runtime+" \"$@\"\n")
	ctr := g.create("echo begun; sleep 1000", func(c *Create) { c.Handler.Path = path })
	runs := g.run("sleep 1000")
	exec := func(ctx context.Context, script string) <-chan error {
		ended := make(chan error, 1)
		go func() {
			_, err := g.Exec(ctx, g.pod, runs, Exec{Process: shellProcess(script), Timeout: time.Hour, Stdout: &syncBuffer{}})
			ended <- err
		}()
		return ended
	}

	ctx, goAway := context.WithCancel(t.Context())
	defer goAway()
	ended := exec(ctx, "sleep 4101; sleep 4102")
	g.within(5*time.Second, "the exec runs", func() bool { return g.alive("sleep", "4101") })
	goAway()
	if err := <-ended; err == nil || g.alive("sleep", "4101") || g.alive("sleep", "4102") {
		t.Errorf("an exec lives whose caller has gone, which is told %v", err)
	}

	ctx, end := context.WithCancel(t.Context())
	defer end()
	ended = exec(ctx, "sleep 2.5; echo more; sleep 4103")
	g.within(5*time.Second, "the exec runs", func() bool { return g.alive("sleep", "2.5") })
	started := make(chan error, 1)
	go func() { started <- g.Start(ctx, g.pod, ctr, g.log(ctr), deadline) }()
	g.within(5*time.Second, "the runtime works on the start", func() bool { return exists(path + ".here") })
	Leave(g.Runtime)
	end()
	HandOver(g.Runtime)
	if n := g.execs.Load(); n > 0 {
		t.Errorf("the output of %d execs is not handed over", n)
	}
	for what, ended := range map[string]<-chan error{"exec": ended, "start": started} {
		if err := <-ended; !errors.Is(err, errLeft) {
			t.Errorf("the %s that is left to the monitor ends with %v", what, err)
		}
	}
	g.hasSaid(ctr, "begun\n")
	g.within(5*time.Second, "the exec goes on", func() bool { return g.alive("sleep", "4103") })
	if f, ok := g.found(ctr); !ok || f.State != Running {
		t.Errorf("the container that was being started is %+v", f)
	}
	if left, _ := filepath.Glob(filepath.Join(g.cfg.bundle(g.pod, runs), "exec-*.log")); len(left) != 1 {
		t.Errorf("files of execs that run: %v, want one", left)
	}
}
