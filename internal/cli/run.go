package cli

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/admin"
	"berth/internal/fail"
)

func (a *app) runCommand() *cobra.Command {
	o := &runOptions{}
	cmd := &cobra.Command{
		Use: "run [flags] IMAGE [ARG...]", Short: "Run a container in a pod of its own", DisableFlagsInUseLine: true,
		Long: "Run a container in a pod of its own, from an image that is pulled if it is missing. Without -d the " +
			"output is shown until the container ends, and the exit code is that of the container; 125 means " +
			"that Berth failed, 126 that the program cannot be executed, 127 that it does not exist, and 128 " +
			"plus a number that this signal ended it. In a terminal (-it), ^P ^Q detaches; berth attach " +
			"attaches again.\n" +
			"\n" +
			"With --pod the container runs in the pod of another berth run, and shares its network.\n" +
			"\n" +
			"Flags come before IMAGE: everything after it, or after a -- that follows it, is passed to the container.",
		Example: examples("berth run --rm -it docker.io/library/busybox:latest sh",
			"berth run -d --name web -p 8080:80 docker.io/library/nginx:latest",
			"berth run -d --pod web --name watch -m 64m --cpus 0.5 docker.io/library/busybox:latest top",
			"berth run --rm --net host -v /etc:/host:ro docker.io/library/busybox:latest ls /host"),
		Args: atLeast(1), ValidArgsFunction: a.completeFirst(images),
	}
	cmd.Flags().SetInterspersed(false)
	ownExitCode(cmd)
	cmd.Flags().Bool("help", false, "help for run") // -h is the host's name, as Docker has it
	o.register(cmd.Flags())
	_ = cmd.RegisterFlagCompletionFunc("pull", cobra.FixedCompletions([]string{pullMissing, pullAlways, pullNever},
		cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("net",
		cobra.FixedCompletions([]string{"pod", "host"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o.image, o.args = args[0], command(args[1:])
		if err := o.check(cmd.Flags()); err != nil {
			return ours(err)
		}
		return ours(a.with(func(c *client) error { return cannotInvoke((&runner{client: c, cmd: cmd, o: o}).run()) }))
	}
	return cmd
}

// runner is one berth run.
type runner struct {
	client    *client
	cmd       *cobra.Command
	o         *runOptions
	config    *runtimeapi.PodSandboxConfig
	pod       string
	container string
	create    *runtimeapi.CreateContainerRequest // was not answered before the command was interrupted
}

// cleanTime bounds what is done after the fact: stopping and removing.
const cleanTime = 2 * time.Minute

func (r *runner) run() error {
	// From here on a lost terminal is like ^C.
	ctx := r.cmd.Context()
	if lost := heeds(syscall.SIGHUP); len(lost) > 0 {
		var stop func()
		ctx, stop = signal.NotifyContext(ctx, lost...)
		defer stop()
	}
	if !r.o.detach && r.o.tty && r.o.stdin && terminalOf(r.cmd.InOrStdin()) == nil {
		return errors.New("-t needs a terminal to type at; leave it out to pipe something in with -i")
	}
	s := &session{node: r.client.node, cmd: r.cmd, tty: r.o.tty, stdin: r.o.stdin, stop: r.interrupt}
	if err := r.make(ctx); err != nil {
		return r.undo(ctx, err)
	}
	if !r.o.detach && (r.o.stdin || r.o.tty) {
		if err := s.attach(ctx, r.container); err != nil {
			return r.undo(ctx, err)
		}
		defer s.end()
	}
	if _, err := r.client.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: r.container}); err != nil {
		return r.undo(ctx, fmt.Errorf("start the container: %w", err))
	}
	if r.o.detach {
		_, err := fmt.Fprintln(stdout(r.cmd), r.container)
		return err
	}
	s.started()
	return r.foreground(ctx, s)
}

// make pulls what is missing and makes pod and container.
func (r *runner) make(ctx context.Context) error {
	img, err := r.ensureImage(ctx)
	if err != nil {
		return err
	}
	uid, err := randomHex(16)
	if err != nil {
		return err
	}
	if r.o.pod != "" {
		return joinPod(ctx, r, img, uid)
	}
	n, err := r.nameIt(ctx, uid)
	if err != nil {
		return err
	}
	pod, err := r.o.podConfig(uid)
	if err != nil {
		return err
	}
	if r.o.publishAll {
		more, err := exposedPorts(ctx, r.client, img, pod.PortMappings)
		if err != nil {
			return err
		}
		pod.PortMappings = append(pod.PortMappings, more...)
	}
	if err := needPorts(ctx, r.client, n, pod.GetPortMappings()); err != nil {
		return err
	}
	if err := warnOfPorts(ctx, r.client, stderr(r.cmd), pod.GetPortMappings()); err != nil {
		return err
	}
	ctr, err := r.o.container(img, r.o.security.namespaces(r.o.network))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(pod.LogDirectory, 0o755); err != nil {
		return fmt.Errorf("make the log directory: %w", err)
	}
	r.config = pod
	made, err := r.client.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: pod, RuntimeHandler: r.o.runtime})
	if err != nil {
		return fmt.Errorf("run the pod: %w", err)
	}
	r.pod = made.GetPodSandboxId()
	return createIn(ctx, r, ctr, pod)
}

// createIn makes the container in the pod that the run has.
func createIn(ctx context.Context, r *runner, ctr *runtimeapi.ContainerConfig, pod *runtimeapi.PodSandboxConfig) error {
	req := &runtimeapi.CreateContainerRequest{PodSandboxId: r.pod, Config: ctr, SandboxConfig: pod}
	created, err := r.client.CreateContainer(ctx, req)
	if err != nil {
		if ctx.Err() != nil {
			r.create = req
		}
		if strings.HasPrefix(err.Error(), "container "+ctr.GetMetadata().GetName()) { // the daemon names it
			return err
		}
		return fmt.Errorf("create the container: %w", err)
	}
	r.container = created.GetContainerId()
	return nil
}

// joinPod makes the container in the pod of another berth run.
func joinPod(ctx context.Context, r *runner, img, uid string) error {
	n, err := r.client.survey(ctx)
	if err != nil {
		return err
	}
	id, err := pick(kindPod, r.o.pod, n.podSubjects())
	if err != nil {
		return err
	}
	p := n.pod(id)
	if !madeByRun(p) {
		return fail.New(errdefs.ErrInvalidArgument, "--pod %s: berth run did not make that pod, and whoever did would not "+
			"expect "+
			"a container of yours in it", r.o.pod)
	}
	r.o.pod = p.GetMetadata().GetName()
	if err := checkName(r.o, uid); err != nil {
		return err
	}
	for _, c := range n.containers {
		if c.GetPodSandboxId() == id && c.GetMetadata().GetName() == r.o.name {
			return fmt.Errorf("pod %s has a container %s already; berth rm -f %s/%s removes it", r.o.pod, r.o.name, r.o.pod,
				r.o.name)
		}
	}
	resp, err := r.client.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
	if err != nil {
		return err
	}
	ctr, err := r.o.container(img, resp.GetStatus().GetLinux().GetNamespaces().GetOptions())
	if err != nil {
		return err
	}
	r.pod = id
	return createIn(ctx, r, ctr, &runtimeapi.PodSandboxConfig{
		Metadata: p.GetMetadata(), Labels: p.GetLabels(), Annotations: p.GetAnnotations(),
		LogDirectory: p.GetAnnotations()[logAnnotation],
	})
}

var idStart = regexp.MustCompile(`^(sha256:)?[0-9a-f]{6,64}$`)

// ensureImage finds the image, or pulls it, as --pull says.
func (r *runner) ensureImage(ctx context.Context) (string, error) {
	if r.o.pull != pullAlways {
		id, err := localImage(ctx, r)
		if err != nil || id != "" {
			return id, err
		}
	}
	if r.o.pull == pullNever {
		return "", fmt.Errorf("%w, and --pull never keeps it from being pulled", &unknownError{kindImage, r.o.image})
	}
	req := &admin.PullRequest{Reference: r.o.image, Platform: r.o.platform}
	img, err := r.client.pull(ctx, req, stderr(r.cmd), r.o.quiet)
	return img.ID, err
}

// localImage is the id of the image where it is in the store, for the platform that was asked for.
func localImage(ctx context.Context, r *runner) (string, error) {
	resp, err := r.client.images.ImageStatus(ctx,
		&runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: r.o.image}})
	if err != nil {
		return "", err
	}
	id := resp.GetImage().GetId()
	if id == "" && idStart.MatchString(r.o.image) {
		if img, err := r.client.image(ctx, r.o.image); err == nil {
			id = img.GetId()
		}
	}
	if id == "" || r.o.platform == "" {
		return id, nil
	}
	found, err := r.client.node.Images(ctx, &admin.ImagesRequest{Images: []string{id}})
	if err != nil {
		return "", err
	}
	if len(found) != 1 || !samePlatform(found[0].Platform, r.o.platform) {
		return "", nil // that of another platform has the name
	}
	return id, nil
}

// samePlatform reports whether two words are of one platform: amd64 and linux/x86_64 are.
func samePlatform(a, b string) bool {
	x, err := platforms.Parse(a)
	y, err2 := platforms.Parse(b)
	return err == nil && err2 == nil &&
		platforms.FormatAll(platforms.Normalize(x)) == platforms.FormatAll(platforms.Normalize(y))
}

var podName = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`)

// checkName makes a name where none was asked for, and refuses one that cannot be a name.
func checkName(o *runOptions, uid string) error {
	if o.name == "" {
		o.name = nameFrom(o.image) + "-" + uid[:4]
	}
	if !podName.MatchString(o.name) {
		return fail.New(errdefs.ErrInvalidArgument,
			"--name %s: a name is up to 63 of a-z, 0-9, - and ., and begins and ends with a letter or digit", o.name)
	}
	return nil
}

// nameIt gives the pod its name, and refuses one that another pod of berth run has. It returns what there is.
func (r *runner) nameIt(ctx context.Context, uid string) (*node, error) {
	if err := checkName(r.o, uid); err != nil {
		return nil, err
	}
	n, err := r.client.survey(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range n.pods {
		if madeByRun(p) && p.GetMetadata().GetName() == r.o.name {
			return nil, fmt.Errorf("pod %s has the name %s already; berth rm -f %s removes it", short(p.GetId()), r.o.name,
				r.o.name)
		}
	}
	return n, nil
}

// nameFrom makes a name of an image's: "nginx" of docker.io/library/nginx:1.27.
func nameFrom(image string) string {
	name, _, _ := strings.Cut(path.Base(image), "@")
	name, _, _ = strings.Cut(name, ":")
	name = strings.Trim(regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(name), "-"), "-")
	if len(name) > 40 {
		name = strings.Trim(name[:40], "-")
	}
	if name == "" || idStart.MatchString(name) {
		return "run"
	}
	return name
}

func randomHex(n int) (string, error) {
	b := make([]byte, n)
	if _, err := rand.Read(b); err != nil {
		return "", fmt.Errorf("make an id: %w", err)
	}
	return hex.EncodeToString(b), nil
}

// undo removes what was made, and returns why.
func (r *runner) undo(ctx context.Context, why error) error {
	return errors.Join(why, r.clean(ctx))
}

// clean removes the pod with all that belongs to it, even when ctx is done; of another's pod the container alone.
func (r *runner) clean(ctx context.Context) error {
	interrupted := ctx.Err() != nil
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTime)
	defer cancel()
	if interrupted {
		r.learn(ctx)
	}
	switch {
	case r.config == nil && r.container == "":
		return nil
	case r.config == nil:
		n, err := r.client.survey(ctx)
		if err != nil {
			return err
		}
		return r.client.remove(ctx, n, target{container: r.container})
	}
	p := &runtimeapi.PodSandbox{Id: r.pod, Metadata: r.config.Metadata, Labels: r.config.Labels,
		Annotations: r.config.Annotations}
	if r.pod == "" {
		return removeLogs(p) // the daemon undoes a pod that it could not run
	}
	return r.client.remove(ctx, &node{pods: []*runtimeapi.PodSandbox{p}}, target{pod: r.pod})
}

// learn asks once more for what was being made when the command was interrupted, and gets the id of the same pod or
// container: the daemon goes on for a while, for one who asks again, and mostly comes to its end. What it could not
// make it has undone.
func (r *runner) learn(ctx context.Context) {
	if r.config != nil && r.pod == "" {
		made, err := r.client.RunPodSandbox(ctx,
			&runtimeapi.RunPodSandboxRequest{Config: r.config, RuntimeHandler: r.o.runtime})
		if err == nil {
			r.pod = made.GetPodSandboxId()
		}
	}
	if r.config == nil && r.create != nil {
		if made, err := r.client.CreateContainer(ctx, r.create); err == nil {
			r.container = made.GetContainerId()
		}
	}
}

// foreground shows the container's output until it ends. When ctx is done first, the container is stopped.
func (r *runner) foreground(ctx context.Context, s *session) error {
	stopped := context.AfterFunc(ctx, func() { r.interrupt(context.WithoutCancel(ctx)) })
	defer stopped()
	free, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	end := awaitEnd(free, r.client, r.container)
	var err error
	if s.attached() {
		var log *logReader
		var logErr error
		if s.behind != nil { // the log may be removed before it is known that it is needed
			log, logErr = r.openLog(free, true)
			defer log.closeFile()
		}
		if err = s.wait(end); errors.Is(err, errBehind) && log != nil {
			if err = logErr; err == nil {
				err = catchUp(free, s, log, end)
			}
		}
		if cut := s.cutOff(); cut != nil { // the container may have ended without an error, since it was stopped
			err = cut
		}
		s.giveBack() // what follows may take long, and is to be seen and interrupted
	} else {
		err = r.follow(free, end)
	}
	if errors.Is(err, errLeft) {
		_, err := fmt.Fprintf(stderr(r.cmd), "\nberth attach %s comes back to it, berth rm -f %s ends it\n", r.o.name,
			r.o.name)
		return err
	}
	if err != nil {
		return r.unseen(err, end)
	}
	if end.status == nil {
		return fmt.Errorf("container %s was removed while it ran", short(r.container))
	}
	return r.finish(ctx, end.status)
}

// unseen is the error of output that could not be shown to its end, with what has become of the container.
func (r *runner) unseen(err error, end *ending) error {
	if isClosed(end.done) && end.status != nil {
		return fmt.Errorf("%w; the container has ended with the exit code %d", err, end.status.GetExitCode())
	}
	return fmt.Errorf("%w; the container goes on without this command: berth logs -f %s shows it", err, r.o.name)
}

// openLog opens the container's log. exact is for one that is to have all of the output. Of a log that cannot have it
// the error tells; the reader is there nevertheless.
func (r *runner) openLog(ctx context.Context, exact bool) (*logReader, error) {
	program := programStreams(r.cmd)
	log := &logReader{tail: -1, out: program.Out, err: program.Err, exact: exact}
	resp, err := r.client.ContainerStatus(ctx,
		&runtimeapi.ContainerStatusRequest{ContainerId: r.container, Verbose: exact})
	if err != nil {
		return log, err
	}
	log.path = resp.GetStatus().GetLogPath()
	if exact && limitedLog(resp.GetInfo()) {
		return log, fmt.Errorf("%w, and %w", errBehind, errLogLacks)
	}
	if err := log.openFile(true); err != nil && !absent(err) {
		return log, err
	}
	return log, nil
}

// follow shows the log, where nothing is missing: neither from before nor from while a daemon restarts. Where something
// is, since the log's disk was full, that is the error once all else was shown.
func (r *runner) follow(ctx context.Context, end *ending) error {
	log, err := r.openLog(ctx, false)
	if err != nil {
		return err
	}
	log.ended = end.over
	if err := log.copy(ctx); err != nil {
		return err
	}
	if log.lost {
		return errLogLost
	}
	return end.lacking(false)
}

// limitedLog says that lines may be dropped of a container's log.
func limitedLog(verbose map[string]string) bool {
	var info struct{ Log *struct{} }
	return json.Unmarshal([]byte(verbose["info"]), &info) != nil || info.Log != nil
}

// catchUp goes on in the log behind what an attachment has shown: whoever takes the output was slower than the
// container, which does not wait. The session goes on for the input; that it is lost ends the showing, too, while the
// container runs.
func catchUp(ctx context.Context, s *session, log *logReader, end *ending) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case err := <-s.done:
			if err != nil && !errors.Is(err, io.EOF) && !isClosed(end.done) {
				cancel(err)
			}
		case <-ctx.Done():
		}
	}()
	if len(rotatedLogs(log.path)) > 0 {
		return fmt.Errorf("%w, and %w", errBehind, errLogLacks)
	}
	log.seen = map[string]int64{streamOut: s.shown.out.Load(), streamErr: s.shown.err.Load()}
	log.ended = end.over
	err := log.copy(ctx)
	if lost := context.Cause(ctx); lost != nil {
		return lost
	}
	if err == nil && end.status != nil {
		err = end.lacking(true)
	}
	if errors.Is(err, errLogLacks) {
		err = fmt.Errorf("%w, and %w", errBehind, err)
	}
	return err
}

// interrupt stops the container, as ^C should. Whoever waits for its end notices.
func (r *runner) interrupt(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, cleanTime)
	defer cancel()
	if err := r.client.stopContainer(ctx, r.container, 10); err != nil {
		fmt.Fprintf(stderr(r.cmd), "berth: %v\n", err)
	}
}

// finish removes the pod, or stops it since nothing runs in it any more, and passes the exit code on. An interrupt ends
// the stopping, unless it is what has ended the container.
func (r *runner) finish(ctx context.Context, s *runtimeapi.ContainerStatus) error {
	if ctx.Err() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, cleanTime)
	defer cancel()
	var err error
	switch {
	case r.o.remove:
		err = r.clean(ctx)
	case r.config == nil: // the pod is another's
	default:
		_, stopErr := r.client.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: r.pod})
		if stopErr != nil {
			err = about("stop pod", r.pod, stopErr)
		}
	}
	if reason := s.GetReason(); reason != "" && reason != "Completed" && reason != "Error" {
		err = errors.Join(fmt.Errorf("the container ended: %s", strings.TrimSuffix(reason+": "+s.GetMessage(), ": ")), err)
	}
	if code := int(s.GetExitCode()); code != 0 {
		return &exitError{code: code, err: err}
	}
	return err
}
