package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/internal/fault"
	"berth/internal/helper"
)

// daemonOrder tells the test binary that it is a daemon which is to be killed, and what to do until then.
const daemonOrder = "BERTH_TEST_NETWORK_DAEMON"

type order struct {
	Config     string
	Plugins    []string
	Cache, Ops string
	Pod        Pod
	Detach     bool
}

// obey pins and attaches a pod, and undoes it if asked to.
func obey(text string) int {
	var o order
	err := json.Unmarshal([]byte(text), &o)
	if err == nil {
		err = o.do()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func (o *order) do() error {
	r := &helper.Runner{Root: o.Ops}
	n, err := Open(Config{ConfigDir: o.Config, PluginDirs: o.Plugins, CacheDir: o.Cache, Run: r.Run,
		AddTimeout: time.Minute, DelTimeout: time.Minute})
	if err != nil {
		return err
	}
	ns := Namespaces{Net: o.Pod.NetNS}
	if err := Pin(ns); err != nil {
		return err
	}
	if _, err := n.Attach(context.Background(), o.Pod); err != nil || !o.Detach {
		return err
	}
	if err := n.Detach(context.Background(), o.Pod); err != nil {
		return err
	}
	return Unpin(ns)
}

// daemon prepares a process that pins and attaches p.
func (h *host) daemon(p Pod, detach bool, env ...string) *exec.Cmd {
	text, err := json.Marshal(order{h.cfg.ConfigDir, h.cfg.PluginDirs, h.cfg.CacheDir, runner.Root, p, detach})
	if err != nil {
		h.t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(append(os.Environ(), daemonOrder+"="+string(text)), env...)
	cmd.Stderr = os.Stderr
	return cmd
}

// recover does what a daemon does at its start.
func (h *host) recover(p Pod) {
	h.t.Helper()
	must(h.t, runner.Sweep())
	h.open()
	ids, err := h.Attachments()
	must(h.t, err)
	for _, id := range ids {
		h.detach(Pod{ID: id, NetNS: p.NetNS})
	}
	must(h.t, SweepPins(netnsDir, "berth-", func(string) bool { return false }))
}

// name makes a pod whose namespace is left to the daemon.
func (h *host) name() Pod {
	pods++
	id := fmt.Sprintf("%064x", pods)
	return Pod{ID: id, Name: "hang", Namespace: "default", NetNS: netnsDir + "/berth-" + id,
		Ports: []Port{{HostPort: 8099, ContainerPort: 80}}}
}

func TestDaemonKilledDuringAdd(t *testing.T) {
	// bridge has made its veth and taken its lease when the second plugin hangs.
	dir, change := script(t, "hangs", hanging)
	h := newHost(t, strings.Replace(bridgeV4, `{"type": "portmap"`, `{"type": "hangs"}, {"type": "portmap"`, 1), change)
	p := h.name()
	cmd := h.daemon(p, false)
	must(t, cmd.Start())
	pid := written(t, filepath.Join(dir, "hangs.pid"))
	must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	if leases, _ := filepath.Glob(h.leases + "/pods/10.*"); len(leases) != 1 {
		t.Fatalf("leases %v", leases)
	}
	h.recover(p)
	ends(t, pid)
}

// TestDaemonKilledAtEachPoint needs the build tag berth_fault. It kills a daemon at each fault point that an attachment
// passes, each time that it passes it.
func TestDaemonKilledAtEachPoint(t *testing.T) {
	if !fault.Enabled {
		t.Skip("needs -tags berth_fault")
	}
	trace := filepath.Join(t.TempDir(), "trace")
	h := newHost(t, bridgeV4)
	must(t, h.daemon(h.name(), true, "BERTH_FAULT_TRACE="+trace).Run())
	data, err := os.ReadFile(trace)
	must(t, err)
	passed := strings.Fields(string(data))
	for _, want := range []string{
		"network.pin.mount.before", "network.pin.mount.after", "network.attach.intent.before", "network.attach.intent.after",
		"network.attach.add.before", "network.attach.add.after", "network.attach.partial.before",
		"network.attach.partial.after", "network.attach.result.before", "network.attach.result.after",
		"network.detach.intent.before", "network.detach.intent.after", "network.detach.del.before",
		"network.detach.del.after",
		"network.detach.forget.before", "network.detach.forget.after", "network.unpin.unmounted",
	} {
		if !slices.Contains(passed, want) {
			t.Errorf("no point %s", want)
		}
	}
	times := map[string]int{}
	for _, point := range passed {
		times[point]++
		t.Run(fmt.Sprintf("%s#%d", point, times[point]), func(t *testing.T) {
			h := newHost(t, bridgeV4)
			p := h.name()
			err := h.daemon(p, true, fmt.Sprintf("BERTH_FAULT=%s=kill#%d", point, times[point])).Run()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("the daemon ended with %v", err)
			}
			h.recover(p)
			must(t, Pin(Namespaces{Net: p.NetNS})) // the same pod asked for again
			h.attach(p)
			h.detach(p)
			must(t, Unpin(Namespaces{Net: p.NetNS}))
		})
	}
}
