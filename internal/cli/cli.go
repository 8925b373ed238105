// Package cli is Berth's command line for people: it speaks CRI, and the small service of package admin, to the
// daemon's socket, and turns what comes back into tables, JSON, progress bars and sentences.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"berth/internal/config"
	"berth/internal/fail"
)

// nodeGroup is the group, in the help, of the commands about the node.
const nodeGroup = "node"

// AddToNode adds a command about the node that takes no arguments, such as the daemon's, to the berth command.
func AddToNode(root, cmd *cobra.Command) {
	cmd.GroupID, cmd.Args = nodeGroup, exactly(0)
	root.AddCommand(cmd)
	finish(cmd)
}

// ownFailure is the exit code of run and exec when Berth itself fails, so that it is not taken for the container's.
const ownFailure = 125

// app is what the commands share.
type app struct {
	version string
	socket  string
}

// New makes the berth command with all that a client can do. The daemon's command is for its caller to add.
func New(version string) *cobra.Command {
	a := &app{version: version}
	root := &cobra.Command{
		Use: "berth", Short: "Run pods on this machine, for a kubelet or by hand",
		Long: "Run pods on this machine, for a kubelet or by hand.\n" +
			"\n" +
			"Exit codes: 0 done; 1 failed; 2 wrong usage, or an invalid request; 3 there is no container, pod " +
			"or image of that name; 4 try again later: the daemon, a registry or a network does not answer; 5 " +
			"refused: credentials, a signature or a permission is missing; 6 a limit is reached, or a disk is " +
			"full. berth run and berth exec return the exit code of the container or command, or 128 and the " +
			"number of the signal that ended it; 125 if Berth itself fails, 126 if the command cannot be " +
			"executed, 127 if it does not exist.",
		SilenceUsage: true, SilenceErrors: true, Version: version, Args: subcommand, SuggestionsMinimumDistance: 2,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	socket := os.Getenv("BERTH_SOCKET")
	if socket == "" {
		socket = "unix://" + config.Default().Socket
	}
	root.PersistentFlags().StringVar(&a.socket, "socket", socket, "`path` of the daemon's socket (environment: "+
		"BERTH_SOCKET)")
	root.AddGroup(&cobra.Group{ID: "run", Title: "Containers and pods:"}, &cobra.Group{ID: "image", Title: "Images:"},
		&cobra.Group{ID: nodeGroup, Title: "The node:"})
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	root.SetFlagErrorFunc(wrongUse)
	add("run", a.runCommand(), a.psCommand(), a.podsCommand(), a.logsCommand(), a.execCommand(), cpCommand(a),
		a.attachCommand(), a.forwardCommand(), a.stopCommand(), startCommand(a), restartCommand(a), a.rmCommand(),
		rmpCommand(a), killCommand(a), waitCommand(a), updateCommand(a), portCommand(a), a.inspectCommand(),
		a.statsCommand(), a.topCommand(), containerCommand(a), podCommand(a))
	add("image", a.pullCommand(), pullsCommand(a), imageListCommand(a, "images"), imageRmCommand(a, "rmi"), tagCommand(a),
		historyCommand(a), saveCommand(a), loadCommand(a), loginCommand(), logoutCommand(), imageCommand(a))
	add(nodeGroup, infoCommand(a), eventsCommand(a), doctorCommand(a), checkCommand(a), configCommand(a),
		reloadCommand(a), versionCommand(a), debugCommand(a), systemCommand(a), migrateCommand(a))
	finish(root)
	return root
}

// Execute runs root until it is done or the process is told to end, says what went wrong, and returns the exit code.
func Execute(root *cobra.Command) int {
	ctx, stop := untilInterrupted(root)
	defer stop()
	return exitCode(root.ExecuteContext(ctx), stderr(root))
}

// untilInterrupted returns a context that ends when the command is interrupted. A second signal ends one that does not
// heed the first.
func untilInterrupted(root *cobra.Command) (ctx context.Context, stop func()) {
	ctx, stop = context.WithCancel(context.Background())
	told := make(chan os.Signal, 1)
	if heeded := heeds(syscall.SIGINT, syscall.SIGTERM); len(heeded) > 0 { // of none, Notify would take all
		signal.Notify(told, heeded...)
	}
	go func() {
		s := <-told
		signal.Stop(told)
		if s == syscall.SIGINT && terminalOf(root.InOrStdin()) != nil && terminalOf(stderr(root)) != nil {
			fmt.Fprintln(stderr(root)) // the terminal shows ^C where the cursor was
		}
		stop()
	}()
	return ctx, stop
}

// heeds leaves out the signals that whoever started this program has it ignore, as nohup and a shell's & do.
func heeds(all ...os.Signal) []os.Signal {
	return slices.DeleteFunc(all, signal.Ignored)
}

// exitError is an end with a code of its own. Err is nil when there is nothing to say.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// errInterrupted is the end of a command that was interrupted before it had done what it was asked for.
var errInterrupted = &exitError{code: 128 + int(syscall.SIGINT), err: errors.New("interrupted")}

// ours marks err as Berth's own failure, for commands whose exit code is otherwise that of a container.
func ours(err error) error {
	var e *exitError
	if err == nil || errors.As(err, &e) {
		return err
	}
	return &exitError{code: ownFailure, err: err}
}

func exitCode(err error, stderr io.Writer) int {
	if err == nil {
		return 0
	}
	code, say := fail.KindOf(err).Exit, true
	var e *exitError
	if errors.As(err, &e) {
		code, say = e.code, e.err != nil
	}
	if errors.Is(err, syscall.EPIPE) { // who reads what is printed has seen enough
		code, say = 128+int(syscall.SIGPIPE), false
	}
	if say {
		text := strings.TrimSpace(err.Error())
		if terminalOf(stderr) != nil {
			text = shortIDs(text)
		}
		fmt.Fprintf(stderr, "berth: %s\n", text)
	}
	return code
}

var wholeID = regexp.MustCompile(`\b(\w+:)?[0-9a-f]{64}\b`)

// shortIDs leaves of ids in a text what does wherever an id is asked for. A digest stays whole.
func shortIDs(text string) string {
	return wholeID.ReplaceAllStringFunc(text, func(id string) string {
		if strings.Contains(id, ":") {
			return id
		}
		return short(id)
	})
}
