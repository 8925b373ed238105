package e2e

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
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
		if code := cmd.ProcessState.ExitCode(); err == nil || code != 3 || !bytes.Equal(out.Bytes(), in) || errs.String() != "END\n" {
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
