package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (a *app) stopCommand() *cobra.Command {
	var grace int64
	cmd := &cobra.Command{
		Use: "stop NAME...", Short: "Stop containers or pods", Args: atLeast(1), ValidArgsFunction: a.complete(targets),
		Long:    "Stop containers or pods. The container of berth run stands for its pod, which is stopped with it.",
		Example: examples("berth stop -t 30 web"),
	}
	cmd.Flags().Int64VarP(&grace, "time", "t", 10, "`seconds` that a container has to end by itself")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.with(func(c *client) error {
			return c.forEach(cmd, args, func(n *node, t target) error { return c.stop(cmd.Context(), n, t, grace) })
		})
	}
	return cmd
}

// forEach does one thing to each of what args mean, goes on where one fails, and prints those that are done.
func (c *client) forEach(cmd *cobra.Command, args []string, do func(*node, target) error) error {
	var failed []error
	for _, word := range args {
		n, err := c.survey(cmd.Context())
		if err != nil {
			return err
		}
		t, err := n.target(word)
		if err == nil {
			err = do(n, t)
		}
		if err != nil {
			failed = append(failed, err)
			continue
		}
		fmt.Fprintln(stdout(cmd), word)
	}
	return errors.Join(failed...)
}

func (c *client) stop(ctx context.Context, n *node, t target, grace int64) error {
	for _, id := range n.containersOf(t) {
		if err := c.stopContainer(ctx, id, grace); err != nil {
			return err
		}
	}
	if t.pod == "" {
		return nil
	}
	if _, err := c.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: t.pod}); err != nil {
		return about("stop pod", t.pod, err)
	}
	return nil
}

// about says what failed, unless the daemon's own words begin so.
func about(what, id string, err error) error {
	if strings.HasPrefix(err.Error(), what+" "+id) {
		return err
	}
	return fmt.Errorf("%s %s: %w", what, short(id), err)
}

func (c *client) stopContainer(ctx context.Context, id string, grace int64) error {
	_, err := c.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: grace})
	if err != nil && !isCode(err, codes.NotFound) {
		return about("stop container", id, err)
	}
	return nil
}

// containersOf are the containers that run or may: of the pod, or the one.
func (n *node) containersOf(t target) []string {
	if t.pod == "" {
		return []string{t.container}
	}
	var ids []string
	for _, c := range n.containers {
		if c.GetPodSandboxId() == t.pod && c.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED {
			ids = append(ids, c.GetId())
		}
	}
	return ids
}

// running says that something of the target lives.
func (n *node) running(t target) bool {
	for _, c := range n.containers {
		ours := c.GetId() == t.container || t.pod != "" && c.GetPodSandboxId() == t.pod
		if ours && c.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING {
			return true
		}
	}
	return false
}

func (a *app) rmCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use: "rm NAME...", Short: "Remove containers or pods", Args: atLeast(1), ValidArgsFunction: a.complete(targets),
		Long: "Remove containers or pods. The container of berth run stands for its pod, which is removed with it, logs included.",
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "also what runs: kill it first")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.with(func(c *client) error {
			return c.forEach(cmd, args, func(n *node, t target) error {
				if !force && n.running(t) {
					return fmt.Errorf("%s runs; stop it first, or use rm -f", t)
				}
				return c.remove(cmd.Context(), n, t)
			})
		})
	}
	return cmd
}

func (t target) String() string {
	if t.pod != "" {
		return "pod " + short(t.pod)
	}
	return "container " + short(t.container)
}

// remove kills what runs of the target and removes it.
func (c *client) remove(ctx context.Context, n *node, t target) error {
	if err := c.stop(ctx, n, t, 0); err != nil {
		return err
	}
	if t.pod == "" {
		if _, err := c.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: t.container}); err != nil {
			return fmt.Errorf("remove %s: %w", t, err)
		}
		return nil
	}
	if _, err := c.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: t.pod}); err != nil {
		return fmt.Errorf("remove %s: %w", t, err)
	}
	return removeLogs(n.pod(t.pod))
}

// removeLogs removes the log directory that berth run made for the pod; the logs of a kubelet's pods are the kubelet's.
func removeLogs(p *runtimeapi.PodSandbox) error {
	dir := p.GetAnnotations()[logAnnotation]
	if !madeByRun(p) || dir == "" || filepath.Base(dir) != logDirectoryName(p.GetMetadata()) {
		return nil
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove the logs: %w", err)
	}
	_ = os.Remove(filepath.Dir(dir)) // it is of use while it holds something, and else in nobody's way
	return nil
}

// absent says that a file is not there.
func absent(err error) bool { return errors.Is(err, fs.ErrNotExist) }
