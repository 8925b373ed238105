package monitor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"berth/internal/cgroup"
)

// noFile is a stream that leads to /dev/null.
const noFile = -1

// noFiles is a program that reads and says nothing.
var noFiles = [3]int{noFile, noFile, noFile}

// program is one call of an OCI runtime.
type program struct {
	argv  []string
	dir   string
	files [3]int        // blocking descriptors; below zero is /dev/null
	own   bool          // /dev/null is one of its own, since a process of the container may get it
	group *cgroup.Group // born into it
	log   string        // where the runtime writes its own log, for the error
}

// goneTimeout is how long killed helpers are waited for.
const goneTimeout = 5 * time.Second

// run starts the program and waits for its end. When ctx ends first, everything in its group is killed and seen gone.
func (m *Monitor) run(ctx context.Context, p program) error {
	dir, err := p.group.Open()
	if err != nil {
		return err
	}
	defer dir.Close()
	null, err := openNull(p.own)
	if err != nil {
		return err
	}
	defer null.Close()
	attr := &syscall.ProcAttr{
		Dir: p.dir, Env: environment(), Files: make([]uintptr, 3),
		Sys: &syscall.SysProcAttr{Setsid: true, UseCgroupFD: true, CgroupFD: int(dir.Fd())},
	}
	for i, f := range p.files {
		if f < 0 {
			f = int(null.Fd())
		}
		attr.Files[i] = uintptr(f)
	}
	_, ended, err := m.reaper.fork(p.argv, attr)
	if err != nil {
		return fmt.Errorf("run %s: %w", p.argv[0], err)
	}
	select {
	case e := <-ended:
		if e.code() == 0 {
			return nil
		}
		return p.failure(e)
	case <-ctx.Done():
		err := fmt.Errorf("%s %s: %w; it was killed", filepath.Base(p.argv[0]), p.command(), context.Cause(ctx))
		return errors.Join(err, vacate(p.group))
	}
}

// environment is what a runtime gets: nothing that is meant for the daemon or for this process.
func environment() []string {
	path := os.Getenv("PATH")
	if path == "" {
		path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	}
	return []string{"PATH=" + path, "HOME=/"}
}

// vacate kills all that is in the group and waits until it is gone.
func vacate(g *cgroup.Group) error {
	if err := g.Kill(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), goneTimeout)
	defer cancel()
	return g.WaitEmpty(ctx)
}

// command is what was asked of the runtime.
func (p program) command() string {
	for _, a := range p.argv[1:] {
		switch a {
		case "create", "start", "exec", "delete", "wait", "kill", "state":
			return a
		}
	}
	return ""
}

// failure is the runtime's failure in its own words.
func (p program) failure(e ending) error {
	how := fmt.Sprintf("exit code %d", e.status.ExitStatus())
	if e.status.Signaled() {
		how = fmt.Sprintf("killed by signal %d", e.status.Signal()) // the table of names would cost each monitor 16 KiB
	}
	err := fmt.Errorf("%s %s: %s", filepath.Base(p.argv[0]), p.command(), how)
	if said := lastWords(p.log); said != "" {
		err = fmt.Errorf("%s %s: %s (%s)", filepath.Base(p.argv[0]), p.command(), said, how)
	}
	if e.status.Signaled() {
		return killed{err}
	}
	return err
}

// maxWords bounds what of a runtime's log goes into an error, in bytes.
const maxWords = 4 << 10

// lastWords finds the last error in a runtime's log, which has one JSON object a line.
func lastWords(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && st.Size() > maxWords {
		_, _ = f.Seek(-maxWords, 2)
	}
	buf := make([]byte, maxWords)
	n, _ := f.Read(buf)
	lines := strings.Split(strings.TrimSpace(string(buf[:n])), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if strings.Contains(lines[i], `"level":"error"`) || strings.Contains(lines[i], `"level": "error"`) {
			return message(lines[i])
		}
	}
	return message(lines[len(lines)-1])
}

// message is the value of "msg" in one line of a runtime's log.
func message(line string) string {
	_, rest, ok := strings.Cut(line, `"msg"`)
	if !ok {
		return strings.TrimSpace(line)
	}
	rest = strings.TrimLeft(rest, ": ")
	rest = strings.TrimPrefix(rest, `"`)
	var b strings.Builder
	for i := 0; i < len(rest) && rest[i] != '"'; i++ {
		if rest[i] == '\\' && i+1 < len(rest) {
			i++
			if rest[i] == 'n' {
				b.WriteByte(' ')
				continue
			}
		}
		b.WriteByte(rest[i])
	}
	return b.String()
}
