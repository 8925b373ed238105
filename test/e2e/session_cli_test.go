package e2e

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// TestExecSyncOutputFits has a kubelet's client take what is much more than it can.
func TestExecSyncOutputFits(t *testing.T) {
	each(t, func(r rig) {
		c := r.pod().start(busybox("main", "sleep 1000"))
		const most = 16<<20 - 4<<10
		for script, want := range map[string][2]int{
			"yes | head -c 20000000":                             {most, 0},
			"yes | head -c 20000000; yes | head -c 20000000 >&2": {most / 2, most / 2},
			"echo small; yes | head -c 20000000 >&2":             {6, most - 6},
			"yes | head -c 4000000; yes | head -c 4000000 >&2":   {4000000, 4000000},
		} {
			stdout, stderr, err := c.tryExec(time.Minute, script)
			if err != nil || len(stdout) != want[0] || len(stderr) != want[1] {
				r.Errorf("%s: %d and %d bytes, %v", script, len(stdout), len(stderr), err)
			}
		}
	})
}

// TestCommandLineStreams has input and much output go through berth exec, and a connection through berth port-forward.
func TestCommandLineStreams(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod()
		c := p.start(busybox("main", "sleep 1000"))
		in := bytes.Repeat([]byte("0123456789abcde\n"), 1<<21) // 32 MiB
		out, errs := &bytes.Buffer{}, &bytes.Buffer{}
		cmd := r.n.Command("exec", "-i", c.cid, "--", "sh", "-c", "cat; echo END >&2; exit 3")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), out, errs
		err := r.n.Space.Run(cmd)
		if code := cmd.ProcessState.ExitCode(); err == nil || code != 3 || !bytes.Equal(out.Bytes(), in) ||
			errs.String() != "END\n" {
			r.Errorf("%v: of %d bytes %d came back, stderr %q", err, len(in), out.Len(), errs)
		}
		if out := r.mustBerth("exec", "-t", c.cid, "tty"); !strings.HasPrefix(out, "/dev/pts/") {
			r.Errorf("with a terminal it says %q", out)
		}

		port := p.listen("tcp", ":0", echo)
		forward := r.n.Command("port-forward", p.id, ":"+strconv.Itoa(port))
		said, err := forward.StdoutPipe()
		r.ok(err)
		r.ok(r.n.Space.Start(forward))
		defer func() {
			r.ok(forward.Process.Signal(syscall.SIGTERM))
			if err := forward.Wait(); err != nil {
				r.Errorf("berth port-forward: %v", err)
			}
		}()
		line, err := bufio.NewReader(said).ReadString('\n')
		r.ok(err)
		address, _, _ := strings.Cut(line, " ")
		conn, err := r.n.Space.DialContext(ctx(), "tcp", address)
		r.ok(err)
		defer conn.Close()
		_, err = conn.Write([]byte("hello"))
		r.ok(err)
		r.ok(conn.(*net.TCPConn).CloseWrite())
		got, err := io.ReadAll(conn)
		if err != nil || string(got) != "hello" {
			r.Errorf("through the port came %q, %v", got, err)
		}
	})
}

// TestRunIntoASlowReader has berth run -i print much more than all buffers hold while nobody reads it, and take input
// after that: the reader gets all, once.
func TestRunIntoASlowReader(t *testing.T) {
	each(t, func(r rig) {
		const much = 60_000_000
		cmd := r.n.Command("run", "-i", "--rm", "--log-dir", r.n.Logs, ref("busybox:latest"), "sh", "-c",
			"head -c "+strconv.Itoa(much)+" /dev/zero | tr '\\0' x; echo through >&2; cat; exit 3")
		in, err := cmd.StdinPipe()
		r.ok(err)
		out, err := cmd.StdoutPipe()
		r.ok(err)
		errs, err := cmd.StderrPipe()
		r.ok(err)
		r.ok(r.n.Space.Start(cmd))
		time.Sleep(2 * time.Second) // in which nothing is read
		said := make(chan string, 1)
		go func() {
			line, _ := bufio.NewReader(errs).ReadString('\n')
			_, _ = io.WriteString(in, "typed later")
			_ = in.Close()
			said <- line
		}()
		n, err := io.Copy(io.Discard, io.LimitReader(out, much))
		rest, restErr := io.ReadAll(out)
		if err != nil || restErr != nil || n != much || string(rest) != "typed later" {
			r.Errorf("%d bytes, %v; then %q, %v", n, err, rest[:min(len(rest), 100)], restErr)
		}
		line := <-said
		_ = cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != 3 || line != "through\n" {
			r.Errorf("code %d, %q", code, line)
		}
	})
}

// sit returns both ends of a terminal, and the state it is in.
func (r rig) sit() (master, slave *os.File, state *term.State) {
	r.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	r.ok(err)
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	r.ok(err)
	r.ok(unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	r.ok(err)
	r.Cleanup(func() { _ = slave.Close(); _ = master.Close() })
	state, err = term.GetState(int(slave.Fd()))
	r.ok(err)
	return master, slave, state
}

// TestTerminalAfterABrokenPipe has the reader of a command's output go, as `| head -1` does: the terminal is to be
// usable after that.
func TestTerminalAfterABrokenPipe(t *testing.T) {
	each(t, func(r rig) {
		c := r.pod().start(busybox("main", "sleep 1000"))
		_, slave, before := r.sit()
		cmd := r.n.Command("exec", "-it", c.cid, "sh", "-c", "while echo line; do sleep 0.05; done")
		errs := &bytes.Buffer{}
		cmd.Stdin, cmd.Stderr = slave, errs
		out, err := cmd.StdoutPipe()
		r.ok(err)
		r.ok(r.n.Space.Start(cmd))
		_, err = bufio.NewReader(out).ReadString('\n')
		r.ok(err)
		r.ok(out.Close())
		err = cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != 128+int(syscall.SIGPIPE) || errs.Len() > 0 {
			r.Errorf("%v, %q", err, errs)
		}
		if after, err := term.GetState(int(slave.Fd())); err != nil || *after != *before {
			r.Errorf("the terminal was not given back: %v", err)
		}
		r.eventually("the command is gone", func() bool { return countProcesses("while echo line", c.cid) == 0 })
	})
}

// TestRunIsLeftAndComeBackTo goes from a shell by ^P ^Q, with what it does going on, and comes back to it by berth
// attach.
func TestRunIsLeftAndComeBackTo(t *testing.T) {
	each(t, func(r rig) {
		name := strings.ToLower(r.n.Instance) + "-left"
		master, slave, before := r.sit()
		screen := &transcript{}
		go func() { _, _ = io.Copy(screen, master) }()
		at := func(args ...string) *exec.Cmd {
			r.Helper()
			cmd := r.n.Command(args...)
			cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
			r.ok(r.n.Space.Start(cmd))
			return cmd
		}
		left := func(cmd *exec.Cmd) {
			r.Helper()
			_, err := master.WriteString("\x10\x11")
			r.ok(err)
			r.ok(cmd.Wait())
			r.eventually("the next prompt has a line of its own", func() bool {
				return strings.HasSuffix(screen.String(), "\n")
			})
			if after, err := term.GetState(int(slave.Fd())); err != nil || *after != *before {
				r.Errorf("the terminal was not given back: %v", err)
			}
		}
		cmd := at("run", "-it", "--name", name, "--log-dir", r.n.Logs, ref("busybox:latest"), "sh")
		defer func() { r.mustBerth("rm", "-f", name) }()
		_, err := master.WriteString("x=kept\r")
		r.ok(err)
		r.eventually("the shell has read it", func() bool { return strings.Count(screen.String(), "# ") > 1 })
		left(cmd)
		r.eventually("it says how to come back", screen.has("berth attach "+name))
		cmd = at("attach", name)
		r.eventually("the shell answers", func() bool {
			_, _ = master.WriteString("echo $x-$((6*7))\r")
			time.Sleep(50 * time.Millisecond)
			return strings.Contains(screen.String(), "kept-42")
		})
		left(cmd)
	})
}
