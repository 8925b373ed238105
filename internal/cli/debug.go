package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"berth/internal/admin"
)

// debugCommand shows what the daemon does at the moment.
func debugCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use: "debug", Short: "Show what the daemon is doing, to find out why it hangs and for bug reports",
		Long: "Show what the daemon is doing. Only root may ask. The daemon answers even while pods are stuck, " +
			"while a disk hangs, and before it is ready.",
	}
	d := debugging{app: a}
	cmd.PersistentFlags().DurationVar(&d.timeout, "timeout", 10*time.Second, "how long to wait for each part of an answer")
	cmd.AddCommand(d.goroutinesCommand(), d.heapCommand(), d.lanesCommand(), d.dumpCommand())
	return cmd
}

// debugging has the commands below debug.
type debugging struct {
	app     *app
	timeout time.Duration
}

func (d *debugging) goroutinesCommand() *cobra.Command {
	sums := false
	cmd := &cobra.Command{
		Use: "goroutines", Short: "Print the stacks of the daemon's goroutines", Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			part := admin.DebugGoroutines
			if sums {
				part = admin.DebugStacks
			}
			return d.copy(cmd.Context(), part, stdout(cmd))
		},
	}
	cmd.Flags().BoolVar(&sums, "sums", false, "count goroutines with the same stack, the most frequent first")
	return cmd
}

func (d *debugging) heapCommand() *cobra.Command {
	return &cobra.Command{
		Use: "heap", Short: "Write a profile of the daemon's heap, for go tool pprof", Args: exactly(0),
		Example: examples("berth debug heap > heap.pprof"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if terminalOf(stdout(cmd)) != nil {
				return wrongUse(cmd, errors.New("a profile is no text for a terminal: redirect it to a file"))
			}
			return d.copy(cmd.Context(), admin.DebugHeap, stdout(cmd))
		},
	}
}

func (d *debugging) lanesCommand() *cobra.Command {
	all := false
	cmd := &cobra.Command{
		Use: "lanes", Short: "List the operations on pods and containers, and what they wait for", Args: exactly(0),
		Long: "List the pods and containers at which an operation runs, or whose undo fails, or whose record is " +
			"being written: the operation and for how long it has run, its step and for how long, how many " +
			"callers wait for its end, which operations are queued behind it, and the error of the last try.",
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also those without an operation")
	format := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var text bytes.Buffer
		if err := d.copy(cmd.Context(), admin.DebugSituations, &text); err != nil {
			return err
		}
		found := []admin.Situation{}
		for dec := json.NewDecoder(&text); ; {
			var s admin.Situation
			err := dec.Decode(&s)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
			if all || waits(&s) {
				found = append(found, s)
			}
		}
		if *format == formatJSON {
			return printJSON(stdout(cmd), found)
		}
		return lanesTable(found, time.Now()).print(stdout(cmd))
	}
	return cmd
}

// waits says that a pod or container waits for something.
func waits(s *admin.Situation) bool {
	return s.Operation != "" || s.Failed != "" || s.Recovering || !s.Writing.IsZero()
}

func lanesTable(found []admin.Situation, now time.Time) *table {
	t := newTable("NAME", "ID", "STATE", "OPERATION", "FOR", "STEP", "FOR", "CALLERS", "NOTE")
	for i := range found {
		s := &found[i]
		id := s.Pod
		if s.Container != "" {
			id = s.Container
		}
		row := []string{orDash(s.Name), short(id), s.State, "-", "-", "-", "-", "-", strings.Join(notes(s, now), "; ")}
		if s.Operation != "" {
			row[3], row[4], row[7] = s.Operation, age(s.Since, now), fmt.Sprint(s.Callers)
		}
		if s.Step != "" {
			row[5], row[6] = strings.Join(append([]string{s.Step}, s.Beside...), ", "), age(s.StepSince, now)
		}
		t.add(row...)
	}
	return t
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// notes are what the other columns do not say.
func notes(s *admin.Situation, now time.Time) (all []string) {
	if s.Ended {
		all = append(all, "told to end")
	}
	for _, kind := range slices.Sorted(maps.Keys(s.Queued)) {
		all = append(all, fmt.Sprintf("%s waits for it (callers: %d)", kind, s.Queued[kind]))
	}
	if s.Recovering {
		all = append(all, "the daemon does not know yet what runs of it")
	}
	if !s.Writing.IsZero() {
		all = append(all, "its record is being written: "+age(s.Writing, now))
	}
	if s.Failed != "" {
		all = append(all, fmt.Sprintf("failed (tries: %d, since %s): %s", s.Tries, ago(s.FailedSince, now), s.Failed))
	}
	return all
}

// copy writes a part to w.
func (d *debugging) copy(ctx context.Context, part string, w io.Writer) error {
	c, err := d.app.dial()
	if err != nil {
		return err
	}
	defer c.close()
	return d.ask(ctx, c, part, w)
}

// ask writes a part of what the daemon tells to w. It gives up when nothing has come for the timeout.
func (d *debugging) ask(ctx context.Context, c *client, part string, w io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := fmt.Errorf("the daemon has said nothing for %v", d.timeout)
	timer := time.AfterFunc(d.timeout, func() { cancel(silent) })
	defer timer.Stop()
	var early error
	err := admin.Debug(ctx, c.conn, []string{part}, func(_ string, data []byte, end bool, err error) error {
		timer.Reset(d.timeout)
		if end {
			early = err
			return nil
		}
		_, err = w.Write(data)
		return err
	})
	if errors.Is(context.Cause(ctx), silent) {
		return silent
	}
	if err == nil && early != nil {
		err = fmt.Errorf("%s: %w", part, early)
	}
	return err
}

func (d *debugging) dumpCommand() *cobra.Command {
	output := ""
	cmd := &cobra.Command{
		Use: "dump", Short: "Write an archive for a bug report", Args: exactly(0),
		Long: "Write an archive of everything that berth debug knows, for a bug report. It is written even if the " +
			"daemon does not answer: what its threads wait for in the kernel is read from /proc.\n" +
			"\n" +
			"The archive has names of pods and containers, ids of their images and the daemon's configuration. " +
			"It has no values of environment variables, labels or annotations, no commands and arguments, no " +
			"credentials of registries and no logs.",
		Example: examples("berth debug dump", "berth debug dump -o /tmp/report.tar.gz"),
	}
	cmd.Flags().StringVarP(&output, "output", "o", "",
		"`file` to write, which must not exist (default berth-debug-TIME.tar.gz)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		path := output
		if path == "" {
			path = "berth-debug-" + time.Now().UTC().Format("20060102T150405") + ".tar.gz"
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		missing, err := d.dump(cmd.Context(), f)
		err = errors.Join(err, f.Close())
		if err != nil {
			_ = os.Remove(path)
			return err
		}
		for _, text := range missing {
			fmt.Fprintf(stderr(cmd), "berth: %s\n", text)
		}
		_, err = fmt.Fprintln(stdout(cmd), path)
		return err
	}
	return cmd
}

// dump writes the archive, and returns what it lacks.
func (d *debugging) dump(ctx context.Context, w io.Writer) (missing []string, err error) {
	archive := newDumpArchive(w)
	lacks := func(name string, err error) { missing = append(missing, fmt.Sprintf("%s: %v", name, err)) }
	if text, err := daemonThreads(socketPath(d.app.socket)); err != nil {
		lacks(threadsFile, err)
	} else if err := archive.add(threadsFile, text); err != nil {
		return nil, err
	}
	c, err := d.app.dial()
	if err != nil {
		return nil, err
	}
	defer c.close()
	silent := 0
	for _, part := range admin.DebugParts() {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if silent == mostSilent {
			lacks(part, errors.New("not asked for: the daemon does not answer"))
			continue
		}
		var text bytes.Buffer
		if err := d.ask(ctx, c, part, &text); err != nil {
			lacks(part, err)
			if text.Len() == 0 {
				silent++
				continue
			}
		} else {
			silent = 0
		}
		if err := archive.add(part, text.Bytes()); err != nil {
			return nil, err
		}
	}
	about := fmt.Sprintf("berth %s, %s\n\n%s\n", d.app.version,
		time.Now().UTC().Format(time.RFC3339), strings.Join(missing, "\n"))
	if err := archive.add("about.txt", []byte(about)); err != nil {
		return nil, err
	}
	return missing, archive.close()
}

// mostSilent is how many parts in a row that do not come show that no others will.
const mostSilent = 2

// threadsFile is the part that comes from /proc.
const threadsFile = "threads.txt"

// mostThreads is how many threads of a daemon are told of.
const mostThreads = 1000

// daemonThreads tells what the threads of the daemon at a socket wait for in the kernel. It needs no answer of the
// daemon.
func daemonThreads(socket string) ([]byte, error) {
	pid, err := servedBy(socket)
	if err != nil {
		return nil, err
	}
	proc := fmt.Sprintf("/proc/%d", pid)
	var text bytes.Buffer
	status, err := os.ReadFile(filepath.Join(proc, "status"))
	if err != nil {
		return nil, err
	}
	text.Write(status)
	tasks, err := os.ReadDir(filepath.Join(proc, "task"))
	if err != nil {
		return nil, err
	}
	for i, task := range tasks {
		if i == mostThreads {
			fmt.Fprintf(&text, "\nand %d threads more\n", len(tasks)-i)
			break
		}
		at := filepath.Join(proc, "task", task.Name())
		fmt.Fprintf(&text, "\nthread %s, state %s, waits in %s\n", task.Name(),
			taskState(filepath.Join(at, "stat")), read(filepath.Join(at, "wchan")))
		text.WriteString(read(filepath.Join(at, "stack")))
	}
	return text.Bytes(), nil
}

// taskState is the letter behind the name of a thread, which may hold any character.
func taskState(stat string) string {
	text := read(stat)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) == 0 {
		return "?"
	}
	return fields[0]
}

// read is a file of /proc, or why it cannot be read.
func read(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Sprintf("(%v)", err)
	}
	return string(data)
}

// servedBy is the process that listens at a socket, whether it answers or not.
func servedBy(socket string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: socket}); err != nil {
		return 0, fmt.Errorf("connect to %s: %w", socket, err)
	}
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return 0, err
	}
	return int(cred.Pid), nil
}
