package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Log is the file of the container's log.
func (p *Pod) Log() string { return filepath.Join(p.config.LogDirectory, logPath) }

// head is the beginning of a file that may be long.
func head(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, 4096))
}

// Address is the IP address of the pod.
func (p *Pod) Address(ctx context.Context) (string, error) {
	resp, err := p.runtime.runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: p.ID})
	if err != nil {
		return "", fmt.Errorf("%s: find the address of a pod: %w", p.runtime.Name, err)
	}
	return resp.GetStatus().GetNetwork().GetIp(), nil
}

// Ended says whether the container has.
func (p *Pod) Ended(ctx context.Context) (bool, error) {
	resp, err := p.runtime.runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: p.Container})
	if err != nil {
		return false, fmt.Errorf("%s: ask for a container: %w", p.runtime.Name, err)
	}
	return resp.GetStatus().GetState() == cri.ContainerState_CONTAINER_EXITED, nil
}

// ExecURL is where a session with a command in the container is to be had.
func (p *Pod) ExecURL(ctx context.Context, command ...string) (string, error) {
	resp, err := p.runtime.runtime.Exec(ctx, &cri.ExecRequest{
		ContainerId: p.Container, Cmd: command, Stdin: true, Stdout: true,
	})
	return resp.GetUrl(), err
}

// AttachURL is where the container can be attached to.
func (p *Pod) AttachURL(ctx context.Context) (string, error) {
	resp, err := p.runtime.runtime.Attach(ctx, &cri.AttachRequest{ContainerId: p.Container, Stdout: true})
	return resp.GetUrl(), err
}

// Written is what the container holds of the node's disk, as a kubelet counts it: what the runtime says of its writable
// layer, and what lies in the pod's folder, its logs among it.
func (p *Pod) Written(ctx context.Context) (int64, error) {
	resp, err := p.runtime.runtime.ContainerStats(ctx, &cri.ContainerStatsRequest{ContainerId: p.Container})
	if err != nil {
		return 0, fmt.Errorf("%s: ask what a container has written: %w", p.runtime.Name, err)
	}
	total := int64(resp.GetStats().GetWritableLayer().GetUsedBytes().GetValue())
	_ = filepath.WalkDir(p.config.LogDirectory, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if info, err := d.Info(); err == nil {
			total += info.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return nil
	})
	return total, nil
}

// RotateLog moves a log that is larger than most out of the way, of which so many are kept, and has a new one opened.
func (p *Pod) RotateLog(ctx context.Context, most int64, keep int) error {
	path := p.Log()
	if info, err := os.Stat(path); err != nil || info.Size() <= most {
		return nil
	}
	for i := keep - 1; i > 0; i-- {
		older := fmt.Sprintf("%s.%d", path, i)
		if i == keep-1 {
			_ = os.Remove(older)
		}
		newer := fmt.Sprintf("%s.%d", path, i-1)
		if i == 1 {
			newer = path
		}
		if err := os.Rename(newer, older); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("rotate a log: %w", err)
		}
	}
	_, err := p.runtime.runtime.ReopenContainerLog(ctx, &cri.ReopenContainerLogRequest{ContainerId: p.Container})
	if err != nil {
		return fmt.Errorf("%s: reopen a log: %w", p.runtime.Name, err)
	}
	return nil
}
