package main

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
	"berth/internal/config"
	"berth/internal/limit"
	"berth/internal/memory"
	"berth/internal/systemd"
	"berth/internal/telemetry"
)

// openMemory bounds the memory of the daemon where the configuration says how much it may have.
func openMemory(cfg *config.Config, g *groups, boot string, log *slog.Logger) *memory.Bound {
	b := memory.Open(cfg.State, ownGroup(cfg, g, log), boot, memory.Killed, log)
	if cfg.Limits.Memory > 0 {
		b.Set(cfg.Limits.Memory)
	}
	return b
}

// ownGroup is the group of the daemon alone, which the kernel can bound; "" where there is none. Images on a tmpfs are
// memory of who fetches them: there the size of the tmpfs is the bound. On a node in a PID namespace the kernel's log
// calls a daemon that was killed by another pid, so that its deaths are not counted, and nothing would take the bound
// away.
func ownGroup(cfg *config.Config, g *groups, log *slog.Logger) string {
	if g.unit == "" || onTmpfs(cfg.ImagesRoot()) || !inFirstPIDNamespace() {
		return ""
	}
	own, ok := systemd.Leaf(g.unit, g.tracking)
	if !ok {
		return ""
	}
	if err := cgroup.Write(filepath.Join(g.unit, "cgroup.subtree_control"), "+memory"); err != nil {
		log.Warn("the kernel does not bound the memory of the daemon", "error", err)
		return ""
	}
	return own
}

// inFirstPIDNamespace reports whether this process has the pid by which the kernel's log calls it. The kernel gives the
// first namespace a fixed number (PROC_PID_INIT_INO).
func inFirstPIDNamespace() bool {
	name, err := os.Readlink("/proc/self/ns/pid")
	return err != nil || name == "pid:[4026531836]"
}

func onTmpfs(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && int64(st.Type) == unix.TMPFS_MAGIC
}

// startTook is how long the pods are waited for before it is judged what the start took: one may never be adopted.
const startTook = time.Minute

// boundMemory bounds the daemon by what its start took, where the configuration leaves it to that.
func boundMemory(ctx context.Context, b *memory.Bound, configured int64, adopted <-chan struct{}) {
	if configured > 0 {
		return
	}
	late := time.NewTimer(startTook)
	defer late.Stop()
	select {
	case <-adopted:
	case <-late.C:
	case <-ctx.Done():
		return
	}
	b.Set(configured)
}

// memoryBudget is the limit of the daemon's memory, with what it uses of it.
func memoryBudget(b *memory.Bound) limit.Budget {
	s := b.Status()
	return limit.DaemonMemory.At(s.Limit).With(s.Used)
}

func watchMemory(m *telemetry.Metrics, b *memory.Bound) {
	m.Watch("berth_memory_limit_bytes", "What the daemon's own memory is limited to, by who sees to it; 0 is no limit.",
		[]string{"by"}, func() []telemetry.Count {
			s := b.Status()
			by := "runtime"
			if s.Hard {
				by = "kernel"
			}
			return []telemetry.Count{{Labels: []string{by}, Value: float64(s.Limit)}}
		})
	m.Watch("berth_memory_deaths", "Daemons that were killed at the limit of their memory in the ten minutes before "+
		"this one started; of three this one has no limit.", nil, func() []telemetry.Count {
		return []telemetry.Count{{Value: float64(b.Status().Deaths)}}
	})
}
