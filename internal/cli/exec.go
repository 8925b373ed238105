package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/admin"
)

// execOptions are the flags of berth exec.
type execOptions struct {
	stdin, tty, detach bool
	timeout            time.Duration
	user, workdir      string
	env, envFiles      []string
}

func (a *app) execCommand() *cobra.Command {
	o := &execOptions{}
	cmd := &cobra.Command{
		Use: "exec [flags] CONTAINER [--] COMMAND [ARG...]", Short: "Run a command in a container",
		DisableFlagsInUseLine: true,
		Long: "Run a command in a container. With -i it reads standard input, with -t it has a terminal. The exit " +
			"code is that of the command; 125 means that Berth failed, 126 that the command cannot be executed, " +
			"127 that it does not exist, 130 that berth exec was interrupted. When berth exec ends, the command " +
			"gets SIGHUP and a little later SIGKILL. With -d it goes on without berth exec, until it ends, its " +
			"container ends or the daemon ends.",
		Example: examples("berth exec -it web sh", "berth exec web -- cat /etc/hostname", "tar c . | berth exec -i web tar "+
			"x -C /srv",
			"berth exec -u www-data -w /srv -e DEBUG=1 web ./check", "berth exec --timeout 10s web sh -c 'ls /proc | wc -l'"),
		Args:              atLeast(1),
		ValidArgsFunction: a.completeFirst(runningContainers),
	}
	cmd.Flags().SetInterspersed(false)
	ownExitCode(cmd)
	cmd.Flags().BoolVarP(&o.stdin, "interactive", "i", false, "pass on standard input")
	cmd.Flags().BoolVarP(&o.tty, "tty", "t", false, "allocate a terminal")
	cmd.Flags().DurationVar(&o.timeout, "timeout", 0, "end the command after this time")
	cmd.Flags().BoolP("sync", "s", false, "wait for its end, as without -d") // as crictl has it
	_ = cmd.Flags().MarkHidden("sync")
	cmd.Flags().BoolVarP(&o.detach, "detach", "d", false, "run in the background, without output and exit code")
	cmd.Flags().StringVarP(&o.user, "user", "u", "", "run as this `USER[:GROUP]` of the container, by name or number")
	cmd.Flags().StringVarP(&o.workdir, "workdir", "w", "", "working `directory` in the container")
	cmd.Flags().StringArrayVarP(&o.env, "env", "e", nil, "a `variable`: NAME=VALUE, or NAME to pass on one of this "+
		"environment")
	cmd.Flags().StringArrayVar(&o.envFiles, "env-file", nil, "`file` of variables, one on each line; -e overrides it")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return ours(a.with(func(c *client) error { return cannotInvoke(c.exec(cmd, args[0], command(args[1:]), o)) }))
	}
	return cmd
}

// command is what follows a name on the command line, with or without a -- between.
func command(args []string) []string {
	if len(args) > 0 && args[0] == "--" {
		return args[1:]
	}
	return args
}

func (c *client) exec(cmd *cobra.Command, word string, argv []string, o *execOptions) error {
	if len(argv) == 0 {
		return errors.New("say which command to run: berth exec CONTAINER COMMAND")
	}
	if o.detach && (o.tty || o.stdin || o.timeout > 0) {
		return errors.New("-d leaves the command alone: it has neither input nor a terminal, and nobody ends it")
	}
	env, err := environment(o.envFiles, o.env)
	if err != nil {
		return err
	}
	if o.tty && o.stdin && terminalOf(cmd.InOrStdin()) == nil {
		return errors.New("-t needs a terminal to type at; leave it out to pipe something in with -i")
	}
	ctx, cancel := context.WithCancelCause(cmd.Context())
	defer cancel(nil)
	id, err := c.container(ctx, word)
	if err != nil {
		return err
	}
	late := fmt.Errorf("the command was not done after %v", o.timeout)
	if o.timeout > 0 { // no deadline: the daemon would learn of it, and could say so first, in words of its own
		defer time.AfterFunc(o.timeout, func() { cancel(late) }).Stop()
	}
	s, last := programStreams(cmd), &lastWords{}
	s.Out, s.Err = io.MultiWriter(s.Out, last), io.MultiWriter(s.Err, last)
	if o.stdin {
		s.In = cmd.InOrStdin()
	}
	if o.tty {
		w := &screen{sizes: make(chan admin.Size, 1)}
		if err := w.take(ctx, cmd, o.stdin); err != nil {
			return err
		}
		defer w.giveBack()
		s.Resize = w.sizes
	}
	req := &admin.ExecRequest{
		Container: id, Command: argv, TTY: o.tty, Stdin: o.stdin, User: o.user, Dir: o.workdir, Detach: o.detach,
	}
	for _, v := range env {
		req.Env = append(req.Env, v.GetKey()+"="+string(v.GetValue()))
	}
	code, err := c.node.Exec(ctx, req, s)
	switch {
	case err != nil && errors.Is(context.Cause(ctx), late):
		return late
	case err != nil && cmd.Context().Err() != nil:
		return errInterrupted
	case err != nil:
		return last.tell(cannotInvoke(err))
	case code != 0:
		return &exitError{code: code}
	}
	return nil
}

func (a *app) attachCommand() *cobra.Command {
	noStdin := false
	cmd := &cobra.Command{
		Use: "attach [flags] CONTAINER", Short: "Attach to the streams of a container", DisableFlagsInUseLine: true,
		Long: "Show the output of a container from now on, and pass on standard input if the container takes " +
			"input. In a terminal, ^P ^Q detaches and ^C goes to the container. From a container without a " +
			"terminal, ^C detaches.",
		Example: examples("berth attach web", "berth attach --no-stdin web"),
		Args:    exactly(1), ValidArgsFunction: a.completeFirst(runningContainers),
	}
	cmd.Flags().BoolVar(&noStdin, "no-stdin", false, "do not pass on standard input")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.with(func(c *client) error { return c.attach(cmd, args[0], !noStdin) })
	}
	return cmd
}

func (c *client) attach(cmd *cobra.Command, word string, stdin bool) error {
	ctx, cancel := context.WithCancelCause(cmd.Context())
	defer cancel(nil)
	id, err := c.container(ctx, word)
	if err != nil {
		return err
	}
	takes, err := c.streamsOf(ctx, id)
	if err != nil {
		return err
	}
	s := programStreams(cmd)
	if stdin = stdin && takes.Stdin; stdin {
		s.In = cmd.InOrStdin()
	}
	if takes.TTY {
		w := &screen{sizes: make(chan admin.Size, 1)}
		if err := w.take(ctx, cmd, stdin); err != nil {
			return err
		}
		defer w.giveBack()
		s.Resize = w.sizes
		if stdin {
			s.In = &leaving{in: s.In, leave: func() { cancel(errLeft) }}
		}
	}
	err = c.node.Attach(ctx, &admin.AttachRequest{Container: id, TTY: takes.TTY, Stdin: stdin}, s)
	switch {
	case errors.Is(context.Cause(ctx), errLeft):
		fmt.Fprint(programStreams(cmd).Err, "\r\n") // the terminal may still be raw
		return nil
	case cmd.Context().Err() != nil:
		return nil // interrupted, which is how this ends
	}
	return err
}

// streamsOf tells which streams a container has.
func (c *client) streamsOf(ctx context.Context, id string) (has struct{ Stdin, TTY bool }, err error) {
	resp, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		return has, err
	}
	info := struct{ Config *struct{ Stdin, TTY bool } }{&has}
	if err := json.Unmarshal([]byte(resp.GetInfo()["info"]), &info); err != nil {
		return has, fmt.Errorf("what the daemon tells of the container: %w", err)
	}
	return has, nil
}

// leaving looks for ^P ^Q in what is typed. A ^P is passed on with what follows it.
type leaving struct {
	in    io.Reader
	leave func()
	held  bool // a ^P that was not passed on
}

const ctrlP, ctrlQ = 0x10, 0x11

// Read reads what is typed.
func (l *leaving) Read(p []byte) (int, error) {
	buf := make([]byte, max(len(p)-1, 1))
	n, err := l.in.Read(buf)
	out := p[:0]
	for _, b := range buf[:n] {
		switch {
		case l.held && b == ctrlQ:
			l.leave()
			return len(out), io.EOF
		case l.held:
			out = append(out, ctrlP)
			l.held = b == ctrlP
		default:
			l.held = b == ctrlP
		}
		if !l.held {
			out = append(out, b)
		}
	}
	return len(out), err
}
