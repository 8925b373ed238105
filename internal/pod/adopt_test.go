package pod

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/process"
	"berth/internal/runtime"
	"berth/internal/sandbox"
)

// hung is a driver whose monitors, but for those of the pods in healthy, answer nothing until answer is closed.
type hung struct {
	*driver
	healthy map[string]bool
	answer  chan struct{}
}

func (h *hung) Adopt(ctx context.Context, pod string) (runtime.Inventory, error) {
	if h.healthy[pod] {
		return runtime.Inventory{}, nil
	}
	select {
	case <-h.answer:
		return runtime.Inventory{}, nil
	case <-ctx.Done():
		return runtime.Inventory{}, context.Cause(ctx)
	}
}

// More pods than are adopted at once have a monitor that hangs: the others are adopted beside them.
func TestHungMonitorsDelayNoOtherAdoption(t *testing.T) {
	b := open(t)
	h := &hung{driver: b.drv, healthy: map[string]bool{}, answer: make(chan struct{})}
	const hanging, healthy = 2*adoptionsAtOnce + 1, 5
	for i := range hanging + healthy {
		id, err := b.Run(t.Context(), podConfig(fmt.Sprint("p", i)), "")
		if err != nil {
			t.Fatal(err)
		}
		if i >= hanging {
			h.healthy[string(id)] = true
		}
	}
	b.end(t)
	answer := sync.OnceFunc(func() { close(h.answer) })
	t.Cleanup(answer) // before what removes the pods
	b.cfg.Runtime = h
	pods, err := Open(b.cfg)
	if err != nil {
		t.Fatal(err)
	}
	b.Pods, b.drv.pods = pods, pods
	done := pods.Recover()
	for id := range h.healthy {
		p := pods.Catalog.index.Load().pods[sandbox.ID(id)]
		wait(t, "the adoption of a pod whose monitor answers", func() bool { return closed(p.adopted) })
	}
	if closed(done) {
		t.Error("all are said to be adopted, and some are not")
	}
	answer()
	wait(t, "the adoption of all", func() bool { return closed(done) })
}

// missing is a driver whose containers have a process of the test's, and whose monitors need the run directory.
type missing struct {
	*driver
	process runtime.Process
}

func (m *missing) Create(ctx context.Context, pod string, c runtime.Create) (runtime.Process, error) {
	_, err := m.driver.Create(ctx, pod, c)
	return m.process, err
}

func (m *missing) Adopt(_ context.Context, pod string) (runtime.Inventory, error) {
	_, err := os.Stat(m.pods.cfg.Run(sandbox.ID(pod)))
	return m.inv, err
}

// TestRunDirectoryIsGone restarts a node that is a container: its processes and its state directory are gone, and the
// boot id is still its host's. Nothing else shows that of a pod which has all of the host's namespaces. While a process
// lives, only the directory can be gone, and what runs is left alone.
func TestRunDirectoryIsGone(t *testing.T) {
	for name, lives := range map[string]bool{"with the processes": false, "alone": true} {
		t.Run(name, func(t *testing.T) {
			b := open(t)
			m := &missing{driver: b.drv, process: sleeper(t, lives)}
			b.cfg.Runtime = m
			b.end(t)
			unmount := inMemory(t, b.cfg.State)
			b.reopen(t)
			cfg := podConfig("a")
			cfg.Linux.SecurityContext.NamespaceOptions = &runtimeapi.NamespaceOption{
				Network: runtimeapi.NamespaceMode_NODE, Ipc: runtimeapi.NamespaceMode_NODE, Pid: runtimeapi.NamespaceMode_NODE,
			}
			_, ctr := startedAs(t, b, cfg)
			b.end(t)
			if !lives {
				clear(m.live)
			}
			unmount()
			b.reopen(t)
			if lives {
				if r, c, err := b.Catalog.GetContainer(ctr); err != nil || r.State != sandbox.Ready || c.State != sandbox.Running {
					t.Errorf("got %+v, %+v, %v", r, c, err)
				}
				return
			}
			wait(t, "the pod is stopped", func() bool {
				r, c, err := b.Catalog.GetContainer(ctr)
				return err == nil && r.State == sandbox.Stopped && c.State == sandbox.Exited && c.Message != ""
			})
		})
	}
}

// partial is a driver whose monitor has left out of its inventory what has none in known.
type partial struct {
	missing
	known atomic.Pointer[runtime.Inventory]
}

func (d *partial) Adopt(context.Context, string) (runtime.Inventory, error) {
	return *d.known.Load(), nil
}

// TestMonitorThatDoesNotKnowAContainer adopts a pod whose monitor lacked something when it took over, and left out a
// container and the one that stands for the pod. While their processes live they run on, and the monitor is asked
// again. Where they are gone the container has ended, as has the pod.
func TestMonitorThatDoesNotKnowAContainer(t *testing.T) {
	for name, lives := range map[string]bool{"alive": true, "gone": false} {
		t.Run(name, func(t *testing.T) {
			b := open(t)
			b.cfg.Bundle.Init = "/bin/true"
			d := &partial{missing: missing{driver: b.drv, process: sleeper(t, true)}}
			d.known.Store(&runtime.Inventory{})
			b.cfg.Runtime = d
			b.reopen(t)
			cfg := podConfig("a")
			cfg.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD // so that it has an init
			id, ctr := startedAs(t, b, cfg)
			now := func(state, of sandbox.State) bool {
				r, c, err := b.Catalog.GetContainer(ctr)
				return err == nil && c.State == state && r.State == of
			}
			if p := d.process; !lives {
				if err := unix.Kill(p.PID, unix.SIGKILL); err != nil {
					t.Fatal(err)
				}
				wait(t, "its process has ended", func() bool { return !process.Alive(p.PID, p.StartTime) })
			}
			b.reopen(t)
			if !lives {
				wait(t, "both have ended", func() bool { return now(sandbox.Exited, sandbox.Stopped) })
				return
			}
			time.Sleep(10 * b.cfg.Retry.Max) // it is asked again and again
			if !now(sandbox.Running, sandbox.Ready) {
				t.Fatal("what runs is said to have ended")
			}
			d.known.Store(&runtime.Inventory{Containers: map[string]runtime.Found{
				string(id):  {State: runtime.Running},
				string(ctr): {State: runtime.Exited, Exit: &runtime.Exit{Code: 7}},
			}})
			wait(t, "the exit that the next monitor knows", func() bool { return now(sandbox.Exited, sandbox.Ready) })
			if _, c, err := b.Catalog.GetContainer(ctr); err != nil || c.ExitCode != 7 {
				t.Errorf("got %+v, %v", c, err)
			}
		})
	}
}

// inMemory has a directory on a tmpfs, as the state directory is, until it is unmounted with all that is mounted below.
func inMemory(t *testing.T, dir string) (unmount func()) {
	t.Helper()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
		t.Fatal(err)
	}
	unmount = sync.OnceFunc(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(unmount)
	return unmount
}

// sleeper returns a process that lives as long as the test, or has ended.
func sleeper(t *testing.T, lives bool) runtime.Process {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end := func() { _, _ = cmd.Process.Kill(), cmd.Wait() }
	start, err := process.Start(cmd.Process.Pid)
	if err != nil {
		t.Error(err)
	}
	if lives {
		t.Cleanup(end)
	} else {
		end()
	}
	return runtime.Process{PID: cmd.Process.Pid, StartTime: start}
}

// TestPodThatIsAskedForDuringTheRecovery has a client's pod be in the index, and not in its lane yet, when the recovery
// comes to it: it is not what an earlier daemon left in the making.
func TestPodThatIsAskedForDuringTheRecovery(t *testing.T) {
	b := open(t)
	cfg := podConfig("a")
	h, _, err := b.bundle.Handlers.Spec("")
	if err != nil {
		t.Fatal(err)
	}
	want := request{cfg: cfg, using: h, digest: digest(cfg, "")}
	p, err := b.Catalog.claim(cfg.Metadata, func() (*pod, error) { return b.newPod(want) })
	if err != nil {
		t.Fatal(err)
	}
	adoptFirst(t.Context(), p)
	resume(t.Context(), p)
	if id, err := b.Run(t.Context(), cfg, ""); err != nil || id != p.id {
		t.Errorf("the pod is %s, and was to be %s: %v", id, p.id, err)
	}
}
