package e2e

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"golang.org/x/sys/unix"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/timeouts"
)

// wantDoctor wants a line of the doctor about NRI with these words.
func (r rig) wantDoctor(words ...string) {
	r.Helper()
	stdout, stderr, _ := r.berth("doctor")
	for line := range strings.Lines(stdout) {
		fields := strings.Fields(line)
		missing := func(w string) bool { return !strings.Contains(line, w) }
		if len(fields) > 2 && fields[1] == "nri" && !slices.ContainsFunc(words, missing) {
			return
		}
	}
	r.Errorf("the doctor has no line about NRI with %q:\n%s%s", words, stdout, stderr)
}

// life runs a container of a pod to its end, and removes both.
func (r rig) life() {
	r.Helper()
	s := r.pod()
	c := s.start(busybox("main", "exit 3"))
	c.finish()
	s.remove()
}

// TestNRISocketOfAnother has somebody listen where plugins would connect: the daemon runs pods without plugins and
// leaves the socket alone. When it is free the next start has plugins again.
func TestNRISocketOfAnother(t *testing.T) {
	nriNode(t, func(r rig) {
		r.wantDoctor("ok", "on, plugins connect at "+r.n.NRI, "take part: 0")
		dir := r.n.Dir + "/nri.d"
		script := fmt.Sprintf("#!/bin/sh\ntouch %s/started\n", r.n.Dir)
		r.ok(errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(dir+"/10-installed", []byte(script), 0o755)))
		r.ok(r.n.Stop())
		if _, err := os.Lstat(r.n.NRI); !errors.Is(err, os.ErrNotExist) {
			r.Errorf("the socket of a daemon that has ended: %v", err)
		}
		other, err := net.Listen("unix", r.n.NRI) // accepts nobody, like one that is stopped
		r.ok(err)
		was, err := os.Lstat(r.n.NRI)
		r.ok(err)
		r.ok(r.n.Start())
		r.wantDoctor("warn", "off: start NRI: "+r.n.NRI, "another process listens")
		r.life()
		if _, err := os.Lstat(r.n.Dir + "/started"); err == nil {
			r.Error("a plugin is started beside those of the other runtime")
		}
		r.ok(r.n.Stop())
		if is, err := os.Lstat(r.n.NRI); err != nil || !os.SameFile(was, is) {
			r.Errorf("the socket of the other process was taken: %v", err)
		}
		r.ok(errors.Join(other.Close(), os.RemoveAll(dir), r.n.Start()))
		p := r.join("10", "late", &plugin{})
		r.wantDoctor("ok", "take part: 1 (10-late)")
		r.life()
		r.ok(r.n.Restart()) // its socket is stale
		again := r.join("10", "again", &plugin{})
		r.life()
		if told := again.told(); !slices.Contains(told, "remove pod") || !slices.Contains(p.told(), "remove pod") {
			r.Errorf("told before and after a restart: %q, %q", p.told(), told)
		}
	})
}

// TestNRIWithoutAPart has parts of NRI fail: the daemon starts, the rest works, and the doctor names what does not.
func TestNRIWithoutAPart(t *testing.T) {
	nriNode(t, func(r rig) {
		dir := r.n.Dir + "/nri.d"
		r.ok(errors.Join(r.n.Stop(), os.Mkdir(dir, 0o755)))
		r.ok(errors.Join(os.WriteFile(dir+"/10-broken", []byte("#!/bin/sh\nexit 1\n"), 0o755), r.n.Start()))
		r.wantDoctor("ok", "on, plugins connect at "+r.n.NRI)
		r.wantDoctor("warn", "broken")

		r.ok(errors.Join(r.n.Stop(), os.WriteFile(dir+"/read.me", nil, 0o755), r.n.Start()))
		r.wantDoctor("ok", "on, plugins connect at "+r.n.NRI)
		r.wantDoctor("warn", "nri.plugin_dir", "read.me")

		fifo := dir + "/20-fifo"
		r.ok(errors.Join(r.n.Stop(), os.Remove(dir+"/read.me"), unix.Mkfifo(fifo, 0o755), r.n.Start()))
		r.wantDoctor("warn", "nri.plugin_dir", fifo+": it is not a regular file")
		p := r.join("10", "witness", &plugin{})
		r.life()
		if !slices.Contains(p.told(), "remove pod") {
			r.Errorf("told %q", p.told())
		}
		r.ok(errors.Join(r.n.Stop(), os.RemoveAll(dir), os.WriteFile(r.n.NRI, []byte("mine"), 0o644), r.n.Start()))
		r.wantDoctor("ok", "on, without a socket")
		r.wantDoctor("warn", r.n.NRI+" is not a socket")
		r.life()
		if text, err := os.ReadFile(r.n.NRI); string(text) != "mine" {
			r.Errorf("a file was removed: %v", err)
		}
	})
}

// TestPluginsJoinAfterDescriptorsRanOut has a plugin connect while the daemon has no descriptor left: the next one
// joins.
func TestPluginsJoinAfterDescriptorsRanOut(t *testing.T) {
	nriNode(t, func(r rig) {
		var was unix.Rlimit
		r.ok(unix.Prlimit(r.n.Pid(), unix.RLIMIT_NOFILE, nil, &was))
		r.ok(unix.Prlimit(r.n.Pid(), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: was.Max}, nil))
		conn, err := net.Dial("unix", r.n.NRI)
		r.ok(err)
		r.eventually("the daemon has no room for it", func() bool {
			return strings.Contains(r.n.DaemonLog(100), "a plugin that connects has to wait")
		})
		r.ok(errors.Join(conn.Close(), unix.Prlimit(r.n.Pid(), unix.RLIMIT_NOFILE, &was, nil)))
		p := r.join("10", "late", &plugin{})
		r.life()
		if !slices.Contains(p.told(), "remove pod") {
			r.Errorf("told %q", p.told())
		}
	})
}

// TestNRIIsOffForOtherRoots has a daemon with another root than the default one, and nothing said about NRI.
func TestNRIIsOffForOtherRoots(t *testing.T) {
	each(t, func(r rig) { r.wantDoctor("ok", "off", "nri.enable is not set") })
}

// TestPluginStopsWhileItJoins has the process of a plugin stopped while it is shown what there is. Containers are
// made when its time is over, and it is dropped.
func TestPluginStopsWhileItJoins(t *testing.T) {
	nriNode(t, func(r rig) {
		const limit = 4 * time.Second
		r.configure(fmt.Sprintf("[nri]\nsynchronization_timeout = %q\n", limit))
		r.ok(r.n.Restart())
		p := r.join("10", "witness", &plugin{})
		notes := r.n.Dir + "/notes"
		self, err := os.Executable()
		r.ok(err)
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), installedVariable+"="+notes, joinsVariable+"="+r.n.NRI)
		r.ok(cmd.Start())
		r.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
		r.eventually("it is stopped", func() bool {
			stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
			return strings.Contains(string(stat), ") T ")
		})
		begin := time.Now()
		r.life()
		if took := time.Since(begin); took > timeouts.For(limit+30*time.Second) {
			r.Errorf("a plugin that is stopped held a pod up for %v", took)
		}
		if !strings.Contains(r.n.DaemonLog(1000), "failed to synchronize plugin") {
			r.Error("the log does not say that it is dropped")
		}
		r.wantDoctor("ok", "take part: 1 (10-witness)")
		r.ok(cmd.Process.Signal(unix.SIGCONT))
		r.life()
		if told := p.told(); !slices.Contains(told, "remove pod") {
			r.Errorf("the other plugin was told %q", told)
		}
		text, err := os.ReadFile(notes)
		if err != nil || !strings.HasSuffix(string(text), "stops\n") {
			r.Errorf("it was told %q, %v", text, err)
		}
	})
}

// TestPluginsOpenNamespaces opens every namespace that a plugin is told of, at the moment it is told. Those of a pod
// that is stopped are gone, and it is told of none.
func TestPluginsOpenNamespaces(t *testing.T) {
	nriNode(t, func(r rig) {
		var mu sync.Mutex
		seen := map[string]string{}
		look := func(moment string, s *api.PodSandbox, c *api.Container) {
			var kinds []string
			for _, n := range slices.Concat(s.GetLinux().GetNamespaces(), c.GetLinux().GetNamespaces()) {
				var st unix.Statfs_t
				err := r.n.Space.Do(func() error { return unix.Statfs(n.Path, &st) })
				if n.Path != "" && (err != nil || st.Type != unix.NSFS_MAGIC) {
					r.Errorf("%s: the %s namespace %s is none: %v", moment, n.Type, n.Path, err)
				}
			}
			for _, n := range s.GetLinux().GetNamespaces() {
				kinds = append(kinds, n.Type)
			}
			mu.Lock()
			defer mu.Unlock()
			seen[moment] = strings.Join(kinds, " ")
		}
		r.join("10", "opener", &plugin{look: look})
		wait := func(moment string) {
			r.eventually("it hears of "+moment, func() bool {
				mu.Lock()
				defer mu.Unlock()
				_, ok := seen[moment]
				return ok
			})
		}
		s := r.pod()
		s.start(busybox("main", "sleep 1000"))
		short := s.start(busybox("short", "true"))
		short.finish()
		wait("stop short")
		r.ok(r.n.Runtime.RemoveContainer(ctx(), short.cid))
		r.ok(r.n.Runtime.StopPodSandbox(ctx(), s.id))
		r.ok(r.n.Runtime.RemovePodSandbox(ctx(), s.id))
		wait("remove pod")
		const all = "network uts ipc"
		mu.Lock()
		for moment, want := range map[string]string{
			"run pod": all, "stop short": all, "remove short": all, "stop main": all, "stop pod": all,
			"remove main": "", "remove pod": "",
		} {
			if got, ok := seen[moment]; !ok || got != want {
				r.Errorf("%s: told %v of the namespaces %q, wanted %q", moment, ok, got, want)
			}
		}
		clear(seen)
		mu.Unlock()

		// A pod of the node's own network and IPC has none of its own at all.
		host := r.pod(func(c *v1.PodSandboxConfig) {
			hostNetwork(c)
			c.Linux.SecurityContext.NamespaceOptions.Ipc = v1.NamespaceMode_NODE
		})
		host.remove()
		wait("remove pod")
		mu.Lock()
		defer mu.Unlock()
		if seen["run pod"] != "" || seen["remove pod"] != "" {
			r.Errorf("of the node's namespaces: %q", seen)
		}
	})
}
