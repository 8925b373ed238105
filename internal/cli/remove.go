package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (a *app) stopCommand() *cobra.Command {
	var grace int64
	var all bool
	cmd := &cobra.Command{
		Use: "stop NAME...", Aliases: []string{"stopp"}, Short: "Stop containers or pods",
		ValidArgsFunction: a.complete(targets),
		Long: "Stop containers or pods. The container that berth run has made a pod for stands for the pod, which " +
			"is stopped with it. --all means the pods of berth run; those of a kubelet are stopped only by name.",
		Example: examples("berth stop -t 30 web", "berth stop --all"),
		Args:    namedOr(&all),
	}
	graceFlag(cmd, &grace)
	cmd.Flags().BoolVarP(&all, "all", "a", false, "all pods of berth run")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.with(func(c *client) error {
			words, err := allPods(cmd.Context(), c, args, all, madeByRun)
			if err != nil {
				return err
			}
			return c.forEach(cmd, words, func(n *node, t target) error { return c.stop(cmd.Context(), n, t, grace) })
		})
	}
	return cmd
}

// namedOr wants arguments, or a flag that stands for all that there is.
func namedOr(all *bool) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if *all {
			return exactly(0)(cmd, args)
		}
		return atLeast(1)(cmd, args)
	}
}

// allPods are the words of a command, or where all are meant the ids of the pods that are ours.
func allPods(ctx context.Context, c *client, words []string, all bool, ours func(*runtimeapi.PodSandbox) bool,
) ([]string, error) {
	if !all {
		return words, nil
	}
	resp, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	var ids []string
	for _, p := range eachPod(resp.GetItems()) {
		if ours(p) {
			ids = append(ids, p.GetId())
		}
	}
	return ids, err
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

// graceFlag gives cmd the flag by which Docker and crictl say how long a container has to end.
func graceFlag(cmd *cobra.Command, grace *int64) {
	cmd.Flags().Int64VarP(grace, "time", "t", 10, "grace period in `seconds`, also as --timeout")
	cmd.Flags().SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "timeout" {
			name = "time"
		}
		return pflag.NormalizedName(name)
	})
}

func (c *client) stop(ctx context.Context, n *node, t target, grace int64) error {
	if grace < 0 {
		grace = math.MaxInt32 // no limit, as with Docker
	}
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

// running says that something of the target lives. A pod of berth run may have more than one sandbox, and is removed
// with all of them.
func (n *node) running(t target) bool {
	for _, c := range n.containers {
		ours := c.GetId() == t.container || t.pod != "" && (c.GetPodSandboxId() == t.pod ||
			samePod(n.pod(c.GetPodSandboxId()), n.pod(t.pod)))
		if ours && c.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING {
			return true
		}
	}
	return false
}

func (a *app) rmCommand() *cobra.Command {
	var force, all bool
	cmd := &cobra.Command{
		Use: "rm NAME...", Short: "Remove containers or pods", ValidArgsFunction: a.complete(targets),
		Long: "Remove containers or pods. The container that berth run has made a pod for stands for the pod, " +
			"which is removed with it, logs included. With --force, a name that does not exist is no error. " +
			"--all means the pods of berth run; for those of a kubelet there is berth rmp.",
		Example: examples("berth rm web", "berth rm -fa"),
		Args:    namedOr(&all),
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "also what is running: kill it first")
	cmd.Flags().BoolVarP(&all, "all", "a", false, "all pods of berth run")
	cmd.Flags().BoolP("volumes", "v", false, "with its volumes, which go with it anyway")
	_ = cmd.Flags().MarkHidden("volumes")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.with(func(c *client) error {
			words, err := allPods(cmd.Context(), c, args, all, madeByRun)
			if err == nil && force {
				words, err = there(cmd, c, words)
			}
			if err != nil {
				return err
			}
			return removeEach(cmd, c, words, force)
		})
	}
	return cmd
}

// rmpCommand removes pods as crictl does, whoever made them.
func rmpCommand(a *app) *cobra.Command {
	var force, all bool
	cmd := &cobra.Command{
		Use: "rmp POD...", Short: "Remove pods, also those of a kubelet", ValidArgsFunction: a.complete(pods),
		Long: "Remove pods with all their containers. --all means all pods of the node: a running kubelet makes " +
			"its own again.",
		Example: examples("berth rmp -f default/web", "berth rmp -fa"),
		Args:    namedOr(&all),
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "also what is running: kill it first")
	cmd.Flags().BoolVarP(&all, "all", "a", false, "all pods of the node")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.with(func(c *client) error {
			words, err := allPods(cmd.Context(), c, args, all, func(*runtimeapi.PodSandbox) bool { return true })
			if err != nil {
				return err
			}
			n, err := c.survey(cmd.Context())
			if err != nil {
				return err
			}
			var ids []string
			for _, word := range words {
				id, err := pick(kindPod, word, n.podSubjects())
				if err != nil {
					return err
				}
				ids = append(ids, id)
			}
			return removeEach(cmd, c, ids, force)
		})
	}
	return cmd
}

// pruneContainersCommand removes what has ended, as Docker does.
func pruneContainersCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use: "prune", Short: "Remove containers of berth run that have ended", Args: exactly(0),
		Long: "Remove pods of berth run in which nothing runs any more, with their containers and logs. A pod " +
			"whose container is about to start again by its restart policy is removed, too.",
	}
	cmd.Flags().BoolP("force", "f", false, "without a question, of which there is none")
	_ = cmd.Flags().MarkHidden("force")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.with(func(c *client) error {
			n, err := c.survey(cmd.Context())
			if err != nil {
				return err
			}
			var ended []string
			for _, p := range eachPod(n.pods) {
				if madeByRun(p) && len(n.containersOf(target{pod: p.GetId()})) == 0 && !n.beingMade(p) {
					ended = append(ended, p.GetId())
				}
			}
			return removeEach(cmd, c, ended, false)
		})
	}
	return cmd
}

// makeTime is how long a pod may take to get its first container.
const makeTime = 10 * time.Minute

// beingMade says that a pod has no container yet, and may get one.
func (n *node) beingMade(p *runtimeapi.PodSandbox) bool {
	young := time.Since(time.Unix(0, p.GetCreatedAt())) < makeTime
	return p.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY && young &&
		!slices.ContainsFunc(n.containers, func(c *runtimeapi.Container) bool { return c.GetPodSandboxId() == p.GetId() })
}

// eachPod leaves of the sandboxes of one pod of berth run the first: what is done to it is done to all.
func eachPod(all []*runtimeapi.PodSandbox) (once []*runtimeapi.PodSandbox) {
	for _, p := range all {
		if !slices.ContainsFunc(once, func(o *runtimeapi.PodSandbox) bool { return samePod(o, p) }) {
			once = append(once, p)
		}
	}
	return once
}

// there leaves out the words that mean nothing, and says so: who removes by force wants it to be gone.
func there(cmd *cobra.Command, c *client, words []string) (known []string, err error) {
	n, err := c.survey(cmd.Context())
	if err != nil {
		return nil, err
	}
	for _, word := range words {
		var unknown *unknownError
		if _, err := n.target(word); errors.As(err, &unknown) {
			fmt.Fprintf(stderr(cmd), "berth: %v\n", err)
			continue
		}
		known = append(known, word)
	}
	return known, nil
}

// removeEach removes what the words mean; what runs only by force.
func removeEach(cmd *cobra.Command, c *client, words []string, force bool) error {
	return c.forEach(cmd, words, func(n *node, t target) error {
		if !force && n.running(t) {
			return fmt.Errorf("%s runs; stop it first, or use rm -f", t)
		}
		return c.remove(cmd.Context(), n, t)
	})
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
		for _, id := range n.attemptsOf(t.container) {
			if err := c.removeContainer(ctx, n, id); err != nil {
				return err
			}
		}
		return nil
	}
	ids := []string{t.pod}
	for _, p := range n.pods {
		if p.GetId() != t.pod && samePod(p, n.pod(t.pod)) {
			ids = append(ids, p.GetId())
		}
	}
	for _, id := range ids {
		if _, err := c.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id}); err != nil {
			return fmt.Errorf("remove %s: %w", t, err)
		}
	}
	return removeLogs(n.pod(t.pod))
}

// attemptsOf are the ids of a container of berth run and of its earlier attempts, the oldest first: its restart policy
// would go on with one that is left. Of a kubelet's container it is that one.
func (n *node) attemptsOf(id string) []string {
	last := n.containerOf(id)
	if !madeByRun(n.podOf(id)) {
		return []string{id}
	}
	var all []*runtimeapi.Container
	for _, c := range n.containers {
		if c.GetPodSandboxId() == last.GetPodSandboxId() && c.GetMetadata().GetName() == last.GetMetadata().GetName() &&
			c.GetMetadata().GetAttempt() <= last.GetMetadata().GetAttempt() {
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b *runtimeapi.Container) int {
		return cmp.Compare(a.GetMetadata().GetAttempt(), b.GetMetadata().GetAttempt())
	})
	var ids []string
	for _, c := range all {
		ids = append(ids, c.GetId())
	}
	return ids
}

// removeContainer removes a container, and its log where that is not a kubelet's.
func (c *client) removeContainer(ctx context.Context, n *node, id string) error {
	log := ownLog(ctx, c, n, id)
	if _, err := c.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
		return fmt.Errorf("remove container %s: %w", short(id), err)
	}
	if err := os.Remove(log); log != "" && err != nil && !absent(err) {
		return fmt.Errorf("remove the log: %w", err)
	}
	return nil
}

// ownLog is the log of a container in a pod of berth run; "" for any other, whose log is a kubelet's.
func ownLog(ctx context.Context, c *client, n *node, id string) string {
	p := n.podOf(id)
	if !madeByRun(p) {
		return ""
	}
	resp, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		return ""
	}
	log := resp.GetStatus().GetLogPath()
	if filepath.Dir(log) != p.GetAnnotations()[logAnnotation] {
		return ""
	}
	return log
}

// logDirectory holds the logs of berth run unless it is told another place.
const logDirectory = "/var/log/berth"

// removeLogs removes the log directory that berth run made for the pod; the logs of a kubelet's pods are the kubelet's.
func removeLogs(p *runtimeapi.PodSandbox) error {
	dir := p.GetAnnotations()[logAnnotation]
	if !madeByRun(p) || dir == "" || filepath.Base(dir) != logDirectoryName(p.GetMetadata()) {
		return nil
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove the logs: %w", err)
	}
	if above := filepath.Dir(dir); above == logDirectory { // one that was asked for is somebody's
		_ = os.Remove(above) // it is of use while it holds something, and harmless otherwise
	}
	return nil
}

// absent says that a file is not there.
func absent(err error) bool { return errors.Is(err, fs.ErrNotExist) }
