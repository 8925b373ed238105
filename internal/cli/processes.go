package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/fail"
)

// clockTicks is how many ticks of /proc make a second, on each architecture that Linux has today.
const clockTicks = 100

// process is one process of a container, as this machine sees it.
type process struct {
	pid, parent int
	user        string
	state       string
	time        time.Duration
	resident    uint64
	command     string
}

// showProcesses lists the processes of a container.
func showProcesses(cmd *cobra.Command, c *client, word string) error {
	id, err := c.container(cmd.Context(), word)
	if err != nil {
		return err
	}
	pid, err := pidOf(cmd.Context(), c, id)
	if err != nil {
		return err
	}
	all, err := processesWith(pid)
	if err != nil {
		return fmt.Errorf("processes of container %s: %w", short(id), err)
	}
	t := newTable("PID", "PPID", "UID", "STATE", "TIME", "MEMORY", "COMMAND")
	for _, p := range all {
		t.add(strconv.Itoa(p.pid), strconv.Itoa(p.parent), p.user, p.state, p.time.String(), bytesText(p.resident), p.command)
	}
	return t.print(stdout(cmd))
}

// pidOf is the first process of a container that runs.
func pidOf(ctx context.Context, c *client, id string) (int, error) {
	resp, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		return 0, err
	}
	var info struct{ PID int }
	if err := json.Unmarshal([]byte(resp.GetInfo()["info"]), &info); err != nil {
		return 0, fmt.Errorf("what the daemon tells of the container: %w", err)
	}
	if state := resp.GetStatus().GetState(); state != runtimeapi.ContainerState_CONTAINER_RUNNING || info.PID == 0 {
		return 0, fail.New(errdefs.ErrFailedPrecondition, "container %s is %s, not running", short(id),
			stateText(state.String()))
	}
	return info.PID, nil
}

// processesWith are those that are in the cgroups of a process, or below them, the oldest first. What ends meanwhile is
// left out.
func processesWith(pid int) ([]process, error) {
	home, err := cgroupsOf(pid)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var all []process
	for _, e := range entries {
		n, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		at, err := cgroupsOf(n)
		if err != nil || at != home && !strings.HasPrefix(at, home+"/") {
			continue
		}
		if p, err := readProcess(n); err == nil {
			all = append(all, p)
		}
	}
	sort.Slice(all, func(i, j int) bool { return all[i].pid < all[j].pid })
	return all, nil
}

// cgroupsOf is where a process is: in the unified hierarchy, or in that of the memory controller where there is none.
func cgroupsOf(pid int) (string, error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return "", err
	}
	found := ""
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 {
			continue
		}
		if parts[1] == "memory" {
			found = parts[2]
			break
		}
		if parts[1] == "" {
			found = parts[2]
		}
	}
	if found == "" || found == "/" {
		return "", errors.New("it is in no cgroup of its own")
	}
	return found, nil
}

// readProcess reads what /proc says. The name of a process may hold anything, also brackets and blanks.
func readProcess(pid int) (process, error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return process{}, err
	}
	name, rest, ok := cutLast(string(stat), ")")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 22 {
		return process{}, fs.ErrInvalid
	}
	p := process{pid: pid, state: fields[0]}
	p.parent, _ = strconv.Atoi(fields[1])
	user, _ := strconv.ParseInt(fields[11], 10, 64)
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	p.time = time.Duration(user+system) * time.Second / clockTicks
	pages, _ := strconv.ParseUint(fields[21], 10, 64)
	p.resident = pages * uint64(os.Getpagesize())
	p.user = "-"
	if status, err := os.ReadFile(filepath.Join(dir, "status")); err == nil {
		if _, uids, ok := strings.Cut(string(status), "\nUid:"); ok {
			p.user, _, _ = strings.Cut(strings.TrimLeft(uids, "\t"), "\t")
		}
	}
	command, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
	p.command = strings.TrimRight(strings.ReplaceAll(string(command), "\x00", " "), " ")
	if p.command == "" {
		_, p.command, _ = strings.Cut(name, "(")
		p.command = "[" + p.command + "]"
	}
	return p, nil
}
