package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"berth/test/node"
)

// Test is a package of tests to run in the machine.
type Test struct {
	Package string   // from the root of the repository, such as test/e2e
	Run     string   // the tests that match; all when empty
	Skip    string   // and not these
	Env     []string // NAME=value
	Flags   []string // more flags of the test program
	// Until is a line of the test, which must be the machine's first: when it comes the power is cut, and the machine is booted
	// again. What the test says does not count, and the tests after it run in the second boot.
	Until string
}

// The lines around the output of each package.
const (
	began = "#### began "
	ended = "#### ended "
)

// silence is how long, on a fast machine, the node may say nothing before it is taken for dead.
const silence = 2 * time.Minute

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
	if err := load(payload, tests); err != nil {
		return fmt.Errorf("make the disk with the tests: %w", err)
	}
	m, err := New(img, payload)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	m.Durable = len(tests) > 0 && tests[0].Until != ""
	if err := m.Boot(); err != nil {
		return err
	}
	if err := m.record(raw); err != nil {
		return err
	}
	if err := m.boots(ctx, tests, out); err != nil {
		return fmt.Errorf("%w; the console of the virtual machine ends with:\n%s", err, m.Console(40))
	}
	return nil
}

// load makes the payload: Berth, the test programs with their test data, and the program that runs them.
func load(payload string, tests []Test) error {
	bin, err := node.Binaries(false)
	if err != nil {
		return err
	}
	script := "#!/bin/sh\nexport HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin BERTH_BIN=/payload/bin BERTH_TEST_WEBAPP=/payload/webapp\n"
	if err := errors.Join(run("cp", "-r", bin, filepath.Join(payload, "bin")),
		goBuild("./test/fixture/webapp", filepath.Join(payload, "webapp"))); err != nil {
		return err
	}
	for i, t := range tests {
		dir := fmt.Sprintf("tests/%d", i)
		if err := compile(t.Package, filepath.Join(payload, dir)); err != nil {
			return err
		}
		script += t.lines(dir)
	}
	return os.WriteFile(filepath.Join(payload, "run"), []byte(script), 0o755)
}

func goBuild(pkg, out string) error {
	return goTool("build", "-trimpath", "-ldflags=-s -w", "-o", out, pkg)
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
	return goTool("test", "-c", "-ldflags=-s -w", "-o", filepath.Join(dir, "tests"), "./"+pkg)
}

func goTool(args ...string) error {
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd, err, text)
	}
	return nil
}

// lines are those of the program that run the tests.
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
	program := fmt.Sprintf("cd %s && %s ./tests %s 2>&1", dir, strings.Join(append([]string{"env"}, t.Env...), " "), strings.Join(args, " "))
	if t.Until != "" { // it must not run in the second boot, and the first one ends in the middle of it
		return fmt.Sprintf("if [ ! -e /var/lib/booted ]; then touch /var/lib/booted; sync; %s; exit 1; fi\n", program)
	}
	return fmt.Sprintf("echo '%s%s'\n(%s)\necho \"%s$?\"\n", began, t.Package, program, ended)
}

// boots collects from the one boot of the machine, or from both.
func (m *Machine) boots(ctx context.Context, tests []Test, out io.Writer) error {
	if len(tests) > 0 && tests[0].Until != "" {
		if err := m.collect(ctx, tests[0].Until, out); !errors.Is(err, errUntil) {
			return errors.Join(fmt.Errorf("the machine went off and had not said %q", tests[0].Until), err)
		}
		if err := m.Boot(); err != nil {
			return err
		}
	}
	return m.collect(ctx, "", out)
}

// errUntil says that the machine was cut off because it said what it was to be cut off at.
var errUntil = errors.New("the power was cut")

// collect reads what the machine says until it is off, or until it says a line; then it is cut off.
func (m *Machine) collect(ctx context.Context, until string, out io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	patience := time.Duration(m.Scale) * silence
	alarm := time.AfterFunc(patience, func() { cancel(fmt.Errorf("it said nothing for %s", patience)) })
	defer alarm.Stop()
	cut := context.AfterFunc(ctx, func() { _ = m.cmd.Process.Kill() })
	defer cut()
	err := m.sections(until, out, func() { alarm.Reset(patience) })
	if errors.Is(err, errUntil) {
		return errors.Join(err, m.Cut())
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return errors.Join(err, m.Await(ctx))
}

// sections passes each package's output through test2json, which turns it into events.
func (m *Machine) sections(until string, out io.Writer, alive func()) error {
	var open *converter
	for {
		line, err := m.Next()
		if err != nil {
			if open != nil {
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
