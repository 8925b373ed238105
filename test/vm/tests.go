package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"berth/test/fixture"
	"berth/test/node"
	"berth/test/timeouts"
)

// Test is a package of tests to run in the machine.
type Test struct {
	Package string   // from the root of the repository, such as test/e2e
	Run     string   // the tests that match; all when empty
	Skip    string   // and not these
	Env     []string // NAME=value
	Flags   []string // more flags of the test program
	// Files are programs, folders and the like that the test finds below /payload by these names, and where they are here.
	Files map[string]string
	// Results is a folder that the test makes below /payload. Once the machine is off it is here, below bin.
	Results string
	// Until is a line of the test: when it comes the power is cut, and the machine is booted again. What the test says
	// does not count, and the tests after it run in the next boot.
	Until string
	// Down shuts the machine down in order after the test, and boots it again for those after it.
	Down bool
}

// The lines around the output of each package.
const (
	began = "#### began "
	ended = "#### ended "
)

// How long, on a fast machine, the node may take to say its first word, and how long it may say nothing after that,
// before it is taken for dead.
const (
	firstWord = 30 * time.Second
	silence   = time.Minute
)

// Run boots a machine, runs the tests in it and writes what `go test -json` would to out. Console output goes into the
// error when the machine itself fails. The working directory must be the root of the repository.
//
// All that the machine said goes to the file raw as it comes.
func Run(ctx context.Context, img Image, tests []Test, raw string, out io.Writer) (err error) {
	payload, err := os.MkdirTemp("", "bt-vm-payload-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(payload)) }()
	if err := load(payload, tests, accelerate(img).scale); err != nil {
		return fmt.Errorf("make the disk with the tests: %w", err)
	}
	m, err := New(img, payload)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	m.Durable = slices.ContainsFunc(tests, func(t Test) bool { return t.Until != "" })
	if err := m.record(raw); err != nil {
		return err
	}
	if err := m.boots(ctx, tests, out); err != nil {
		return errors.Join(fmt.Errorf("%w; the console of the virtual machine ends with:\n%s", err, m.Console(40)),
			m.keepResults(tests))
	}
	return m.keepResults(tests)
}

// keepResults copies what tests have left on the second disk of a machine that is off.
func (m *Machine) keepResults(tests []Test) (err error) {
	for _, t := range tests {
		if t.Results != "" {
			err = errors.Join(err, m.keep(t.Results, filepath.Join("bin", t.Results)))
		}
	}
	return err
}

// load makes the payload: Berth, the test programs with their test data, and the program that runs them.
func load(payload string, tests []Test, scale int) error {
	bin, err := node.Binaries(false)
	if err != nil {
		return err
	}
	script := fmt.Sprintf("#!/bin/sh\necho the node is up\n"+
		"export HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin BERTH_BIN=/payload/bin "+
		"BERTH_TEST_WEBAPP=/payload/webapp BERTH_TEST_BOXED=/payload/boxed BERTH_TEST_PROBE=/payload/probe- %s=%d\n",
		timeouts.Variable, scale)
	if err := errors.Join(run("cp", "-r", bin, filepath.Join(payload, "bin")),
		fixture.Build("webapp", filepath.Join(payload, "webapp")),
		fixture.Build("boxed", filepath.Join(payload, "boxed"))); err != nil {
		return err
	}
	for _, arch := range fixture.ProbeArchitectures() {
		if err := fixture.BuildFor(arch, "probe", filepath.Join(payload, "probe-"+arch)); err != nil {
			return err
		}
	}
	if _, err := os.Stat(fixture.I386Cache()); err == nil { // else what needs it skips itself
		script += "export BERTH_TEST_I386=/payload/i386.tar\n"
		if err := run("cp", fixture.I386Cache(), filepath.Join(payload, "i386.tar")); err != nil {
			return err
		}
	}
	for i, t := range tests {
		dir := fmt.Sprintf("tests/%d", i)
		if err := compile(t.Package, filepath.Join(payload, dir)); err != nil {
			return err
		}
		if err := t.copyFiles(payload); err != nil {
			return err
		}
		script += t.lines(dir)
	}
	return os.WriteFile(filepath.Join(payload, "run"), []byte(script), 0o755)
}

// copyFiles puts what a test needs beside itself on the disk.
func (t Test) copyFiles(payload string) error {
	for name, from := range t.Files {
		to := filepath.Join(payload, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), run("cp", "-r", from, to)); err != nil {
			return err
		}
	}
	return nil
}

func compile(pkg, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	data := filepath.Join(pkg, "testdata")
	if _, err := os.Stat(data); err == nil {
		if err := run("cp", "-r", data, dir); err != nil {
			return err
		}
	}
	cmd := exec.Command("go", "test", "-c", "-ldflags=-s -w", "-o", filepath.Join(dir, "tests"), "./"+pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd, err, text)
	}
	return nil
}

// lines are those of the program that run the tests, each in one boot and not again in the next.
func (t Test) lines(dir string) string {
	args := append([]string{"-test.v=test2json", "-test.timeout=0"}, t.Flags...)
	if t.Run != "" {
		args = append(args, "-test.run="+t.Run)
	}
	if t.Skip != "" {
		args = append(args, "-test.skip="+t.Skip)
	}
	for i, a := range args {
		args[i] = "'" + a + "'"
	}
	program := fmt.Sprintf("cd %s && %s ./tests %s 2>&1", dir, strings.Join(append([]string{"env"}, t.Env...), " "),
		strings.Join(args, " "))
	if t.Until == "" {
		program = fmt.Sprintf("echo '%s%s'; (%s); echo \"%s$?\"", began, t.Package, program, ended)
	}
	if t.Until != "" || t.Down {
		program += "; exit"
	}
	return fmt.Sprintf("if [ ! -e /var/lib/ran/%[1]s ]; then mkdir -p /var/lib/ran/%[1]s; sync; %[2]s; fi\n", dir, program)
}

// boots collects from all boots of the machine.
func (m *Machine) boots(ctx context.Context, tests []Test, out io.Writer) error {
	for _, t := range tests {
		if t.Until != "" {
			if err := m.boot(ctx, t.Until, out); !errors.Is(err, errUntil) {
				return errors.Join(fmt.Errorf("the machine went off and had not said %q", t.Until), err)
			}
		}
		if t.Down {
			if err := m.boot(ctx, "", out); err != nil {
				return err
			}
		}
	}
	return m.boot(ctx, "", out)
}

// boot starts the machine and collects what it says. A node that does not come as far as the tests is started a second
// time: an emulated kernel may panic, or hang, before it has come to what is tested.
func (m *Machine) boot(ctx context.Context, until string, out io.Writer) error {
	err := m.once(ctx, until, out)
	if !errors.Is(err, errMute) || ctx.Err() != nil {
		return err
	}
	if m.raw != nil {
		_, _ = fmt.Fprintf(m.raw, "the machine is started again: %v; its console ended with:\n%s\n", err, m.Console(40))
	}
	return errors.Join(m.Cut(), m.once(ctx, until, out))
}

func (m *Machine) once(ctx context.Context, until string, out io.Writer) error {
	if err := m.Boot(); err != nil {
		return err
	}
	return m.collect(ctx, until, out)
}

var (
	// errUntil says that the machine was cut off because it said what it was to be cut off at.
	errUntil = errors.New("the power was cut")
	// errMute says that the machine ended and had not said a word.
	errMute = errors.New("it did not come as far as the tests")
)

// collect reads what the machine says until it is off, or until it says a line; then it is cut off.
func (m *Machine) collect(ctx context.Context, until string, out io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	scale, mute := time.Duration(m.Scale), true
	alarm := time.AfterFunc(scale*firstWord, func() {
		cancel(fmt.Errorf("it was silent for too long, on a machine %d times slower", m.Scale))
	})
	defer alarm.Stop()
	cut := context.AfterFunc(ctx, func() { _ = m.cmd.Process.Kill() })
	defer cut()
	err := m.sections(until, out, func() { mute = false; alarm.Reset(scale * silence) })
	if errors.Is(err, errUntil) {
		return errors.Join(err, m.Cut())
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	err = errors.Join(err, m.Await(ctx))
	if mute {
		err = errors.Join(errMute, err)
	}
	return err
}

// sections passes each package's output through test2json, which turns it into events.
func (m *Machine) sections(until string, out io.Writer, alive func()) error {
	var open *converter
	for {
		line, err := m.Next()
		if err != nil {
			if open != nil {
				_, _ = fmt.Fprintln(open.in, "FAIL") // else the tests in the middle of which it ended would not be told of
				return fmt.Errorf("the machine went off in the tests of %s: %w", open.pkg, errors.Join(open.close(), err))
			}
			if err == io.EOF {
				return nil
			}
			return err
		}
		alive()
		switch {
		case until != "" && line == until:
			return errUntil
		case strings.HasPrefix(line, began):
			if open, err = convert(strings.TrimPrefix(line, began), out); err != nil {
				return err
			}
		case strings.HasPrefix(line, ended) && open != nil:
			if err := open.close(); err != nil {
				return err
			}
			open = nil
		case open != nil:
			_, _ = fmt.Fprintln(open.in, line)
		}
	}
}

// converter is a running test2json.
type converter struct {
	pkg string
	cmd *exec.Cmd
	in  io.WriteCloser
}

func convert(pkg string, out io.Writer) (*converter, error) {
	c := &converter{pkg: pkg, cmd: exec.Command("go", "tool", "test2json", "-t", "-p", "vm/"+pkg)}
	c.cmd.Stdout, c.cmd.Stderr = out, os.Stderr
	var err error
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	return c, c.cmd.Start()
}

func (c *converter) close() error { return errors.Join(c.in.Close(), c.cmd.Wait()) }
