package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// daemon is one process of `berth serve`.
type daemon struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

func launch(n *Node, env []string) (*daemon, error) {
	log, err := os.OpenFile(n.Dir+"/daemon.log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	argv := append(slices.Clone(n.options.Starter), filepath.Join(n.bin, "berth"), "serve", "--config", n.Config,
		"--root", n.Root, "--state", n.State, "--socket", n.Socket, "--log-level", "debug")
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = log, log
	// The daemon of a test that is killed ends with it. Its own process group keeps a ^C for the test to handle.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := n.Space.Start(cmd); err != nil {
		return nil, fmt.Errorf("start the daemon: %w", err)
	}
	d := &daemon{cmd: cmd, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(d.done)
	}()
	return d, nil
}

func (d *daemon) signal(s syscall.Signal) error {
	if d == nil || d.ended() {
		return os.ErrProcessDone
	}
	return d.cmd.Process.Signal(s)
}

func (d *daemon) ended() bool {
	select {
	case <-d.done:
		return true
	default:
		return false
	}
}

func (d *daemon) succeeded() bool { return d.ended() && d.cmd.ProcessState.Success() }

func (d *daemon) state() string { return d.cmd.ProcessState.String() }

// DaemonLog returns the last lines of what the daemon wrote.
func (n *Node) DaemonLog(lines int) string {
	data, err := os.ReadFile(n.Dir + "/daemon.log")
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(data)), "\n")
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	return strings.Join(all, "\n")
}
