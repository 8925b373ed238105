package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/annotation"
	"berth/internal/attempt"
	"berth/internal/fail"
	"berth/internal/sandbox"
)

func startCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "start NAME...", Short: "Start ended containers of berth run again", Args: atLeast(1),
		Long: "Start containers of berth run again that have ended or were stopped, as a kubelet does: each is " +
			"replaced by a new container of the next attempt, with the same image and flags, and an empty " +
			"writable layer. It is in the same pod as long as that is ready; a pod that was stopped, or that a " +
			"reboot has ended, is replaced by a new one with another address. The name and the log directory " +
			"stay; berth logs --previous prints the log of the attempt before.\n" +
			"\n" +
			"A kubelet starts its own containers: this command refuses them.",
		Example:           examples("berth start web", "berth start web/side"),
		ValidArgsFunction: a.complete(targets),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(func(c *client) error {
				return c.forEach(cmd, args, func(n *node, t target) error { return startAgain(cmd.Context(), c, n, t) })
			})
		},
	}
}

func restartCommand(a *app) *cobra.Command {
	var grace int64
	cmd := &cobra.Command{
		Use: "restart NAME...", Short: "Stop containers of berth run and start them again", Args: atLeast(1),
		Long: "Stop containers of berth run, if they run, and start them again in the same pod, as berth start " +
			"--help describes. The pod keeps its address.",
		Example: examples("berth restart -t 30 web"), ValidArgsFunction: a.complete(targets),
	}
	graceFlag(cmd, &grace)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.with(func(c *client) error {
			return c.forEach(cmd, args, func(n *node, t target) error {
				if _, err := ownPod(n, t); err != nil {
					return err
				}
				if err := staysAtItsEnd(n, t); err != nil {
					return err
				}
				for _, id := range n.containersOf(t) {
					if err := c.stopContainer(cmd.Context(), id, grace); err != nil {
						return err
					}
				}
				return startAgain(cmd.Context(), c, n, t)
			})
		})
	}
	return cmd
}

// ownPod is the pod of berth run that a target is, or is in.
func ownPod(n *node, t target) (*runtimeapi.PodSandbox, error) {
	p := n.pod(t.pod)
	if t.pod == "" {
		p = n.podOf(t.container)
	}
	if !madeByRun(p) {
		return nil, fail.New(errdefs.ErrInvalidArgument, "%s is not of berth run: whoever made it starts it again", t)
	}
	return p, nil
}

// staysAtItsEnd refuses to start what is removed when it ends.
func staysAtItsEnd(n *node, t target) error {
	for _, c := range n.containers {
		meant := c.GetId() == t.container || c.GetPodSandboxId() == t.pod && standsForPod(n.pod(t.pod), c)
		if meant && sandbox.Removal(n.podOf(c.GetId()).GetLabels(), c.GetAnnotations()) != annotation.Stays {
			return fail.New(errdefs.ErrFailedPrecondition, "%s was run with --rm: it is removed at its end; berth run makes "+
				"another", t)
		}
	}
	return nil
}

// startAgain starts what has ended of a pod, or one container of it.
func startAgain(ctx context.Context, c *client, n *node, t target) error {
	p, err := ownPod(n, t)
	if err != nil {
		return err
	}
	if err := staysAtItsEnd(n, t); err != nil {
		return err
	}
	known, err := podAsItIs(ctx, c, n, p)
	if err != nil {
		return err
	}
	name := n.containerOf(t.container).GetMetadata().GetName()
	rt := &again{c: c, n: n}
	_, err = attempt.Start(ctx, rt, known, func(k attempt.Container) bool {
		stays := sandbox.Removal(p.GetLabels(), k.Config.GetAnnotations()) == annotation.Stays
		return stays && (t.pod != "" || k.Config.GetMetadata().GetName() == name)
	})
	if err != nil && rt.pod != "" && !rt.created {
		err = errors.Join(err, rt.undoPod(ctx))
	}
	return err
}

// podAsItIs asks for all that is known of a pod in its newest sandbox and in those before.
func podAsItIs(ctx context.Context, c *client, n *node, of *runtimeapi.PodSandbox) (attempt.Pod, error) {
	newest, meta := of, of.GetMetadata()
	sandboxes := map[string]bool{}
	for _, p := range n.pods {
		m := p.GetMetadata()
		if m.GetUid() != meta.GetUid() || m.GetName() != meta.GetName() || m.GetNamespace() != meta.GetNamespace() {
			continue
		}
		sandboxes[p.GetId()] = true
		if m.GetAttempt() > newest.GetMetadata().GetAttempt() {
			newest = p
		}
	}
	resp, err := c.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: newest.GetId(), Verbose: true})
	if err != nil {
		return attempt.Pod{}, err
	}
	known := attempt.Pod{
		ID: newest.GetId(), Handler: newest.GetRuntimeHandler(), Config: podConfigOf(resp.GetInfo()),
		Ready: resp.GetStatus().GetState() == runtimeapi.PodSandboxState_SANDBOX_READY,
	}
	if known.Config == nil {
		return attempt.Pod{}, errors.New("the daemon does not say what the pod was asked to be")
	}
	for id := range sandboxes {
		if id != known.ID {
			known.Older = append(known.Older, id)
		}
	}
	for _, i := range n.containers {
		if !sandboxes[i.GetPodSandboxId()] {
			continue
		}
		k, err := containerAsItIs(ctx, c, i)
		if err != nil {
			return attempt.Pod{}, err
		}
		known.Containers = append(known.Containers, k)
	}
	return known, nil
}

func containerAsItIs(ctx context.Context, c *client, i *runtimeapi.Container) (attempt.Container, error) {
	k := attempt.Container{ID: i.GetId(), Pod: i.GetPodSandboxId(), Config: &runtimeapi.ContainerConfig{}}
	resp, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: k.ID, Verbose: true})
	if err != nil {
		return k, err
	}
	k.State = resp.GetStatus().GetState()
	var info struct{ Config json.RawMessage }
	err = json.Unmarshal([]byte(resp.GetInfo()["info"]), &info)
	if err == nil {
		err = (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(info.Config, k.Config)
	}
	if err != nil {
		return k, fmt.Errorf("what the daemon tells of container %s: %w", short(k.ID), err)
	}
	return k, nil
}

// again makes attempts through the daemon's socket.
type again struct {
	c       *client
	n       *node
	pod     string // the sandbox that was made
	created bool   // a container was
}

func (a *again) RunPod(ctx context.Context, cfg *runtimeapi.PodSandboxConfig, handler string) (string, error) {
	if err := needPorts(ctx, a.c, a.n, cfg.GetPortMappings()); err != nil {
		return "", err
	}
	resp, err := a.c.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: cfg, RuntimeHandler: handler})
	a.pod = resp.GetPodSandboxId()
	return a.pod, err
}

// undoPod removes the sandbox that was made: the pod is as it was before. One in which there is a container stays: the
// daemon, which starts pods again by itself, has made it at the same time, and both were given the same sandbox.
func (a *again) undoPod(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTime)
	defer cancel()
	resp, err := a.c.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return err
	}
	for _, c := range resp.GetContainers() {
		if c.GetPodSandboxId() == a.pod {
			return nil
		}
	}
	return a.RemovePod(ctx, a.pod)
}

func (a *again) Create(
	ctx context.Context, pod string, ctr *runtimeapi.ContainerConfig, cfg *runtimeapi.PodSandboxConfig,
) (string, error) {
	req := &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: ctr, SandboxConfig: cfg}
	resp, err := a.c.CreateContainer(ctx, req)
	if name := ctr.GetImage().GetUserSpecifiedImage(); isCode(err, codes.NotFound) && name != "" {
		err = fmt.Errorf("%w: berth pull %s", err, name)
	}
	a.created = a.created || err == nil
	return resp.GetContainerId(), err
}

func (a *again) Start(ctx context.Context, container string) error {
	_, err := a.c.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: container})
	return err
}

func (a *again) RemovePod(ctx context.Context, id string) error {
	_, err := a.c.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
	return err
}

// RemoveContainer removes the log, too, to which nothing leads any more.
func (a *again) RemoveContainer(ctx context.Context, id string) error {
	log := ownLog(ctx, a.c, a.n, id)
	if _, err := a.c.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
		return err
	}
	if log == "" {
		return nil
	}
	if err := os.Remove(log); err != nil && !absent(err) {
		return fmt.Errorf("remove the log: %w", err)
	}
	return nil
}
