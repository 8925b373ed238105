package chaos

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// restartAfter is how long a service is down, as a service manager has it.
const restartAfter = 100 * time.Millisecond

// service is a program that is started again whenever it ends, as a service manager does.
type service struct {
	command func() *exec.Cmd
	log     string           // what it says is appended to this file
	ended   func(how string) // called when it has ended and was not killed
	done    chan struct{}    // closed when it is not started any more

	mu      sync.Mutex // guards what follows
	process *os.Process
	wanted  bool
}

func startService(command func() *exec.Cmd, log string, ended func(string)) (*service, error) {
	s := &service{command: command, log: log, ended: ended, done: make(chan struct{}), wanted: true}
	cmd, err := s.launch()
	if err != nil {
		return nil, err
	}
	go s.keep(cmd)
	return s, nil
}

func (s *service) launch() (*exec.Cmd, error) {
	out, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }()
	cmd := s.command()
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.wanted {
		return nil, os.ErrProcessDone
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	s.process = cmd.Process
	return cmd, nil
}

// keep starts the program whenever it has ended, until that is not wanted any more.
func (s *service) keep(cmd *exec.Cmd) {
	defer close(s.done)
	for {
		err := cmd.Wait()
		s.mu.Lock()
		s.process = nil
		wanted := s.wanted
		s.mu.Unlock()
		if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && wanted && status.Signal() != syscall.SIGKILL {
			s.ended(fmt.Sprint(err))
		}
		for {
			time.Sleep(restartAfter)
			if cmd, err = s.launch(); err == nil {
				break
			}
			if err == os.ErrProcessDone {
				return
			}
			s.ended(err.Error())
		}
	}
}

// pid is the process, 0 while there is none.
func (s *service) pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return 0
	}
	return s.process.Pid
}

// stop ends the program in order, and with SIGKILL when that takes too long.
func (s *service) stop(most time.Duration) error {
	s.mu.Lock()
	s.wanted = false
	if s.process != nil {
		_ = s.process.Signal(syscall.SIGTERM)
	}
	s.mu.Unlock()
	select {
	case <-s.done:
		return nil
	case <-time.After(most):
	}
	s.mu.Lock()
	if s.process != nil {
		_ = s.process.Kill()
	}
	s.mu.Unlock()
	<-s.done
	return fmt.Errorf("it did not end within %s of SIGTERM", most)
}
