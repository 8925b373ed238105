package cli

import (
	"errors"
	"strings"
	"sync"
)

// The exit codes of run and exec, beside ownFailure, where the command is why nothing ran. Shells have them.
const (
	exitCannotInvoke = 126
	exitNoCommand    = 127
)

// invocations are what runtimes say of a program that cannot be executed. crun and runc have the kernel's words, each
// in its own sentence, and gVisor has its own.
var invocations = []struct {
	code  int
	words []string // all of them
}{
	{exitNoCommand, []string{"executable file", "not found"}}, // crun, and runc of a name without a path
	{exitNoCommand, []string{"exec: ", "no such file or directory"}},
	{exitNoCommand, []string{"exec ", "failed: no such file or directory"}},
	{exitNoCommand, []string{"open executable", "no such file or directory"}}, // crun, of a path
	{exitCannotInvoke, []string{"exec: ", "permission denied"}},
	{exitCannotInvoke, []string{"exec: ", "is a directory"}},
	{exitCannotInvoke, []string{"exec: ", "exec format error"}},
	{exitCannotInvoke, []string{"exec ", "failed: permission denied"}},
	{exitCannotInvoke, []string{"open executable", "permission denied"}},
	{exitCannotInvoke, []string{"open executable", "operation not permitted"}}, // crun, of a directory
	{exitCannotInvoke, []string{"exec format error"}},
	{exitCannotInvoke, []string{"the path ", "is not executable"}},     // crun
	{exitCannotInvoke, []string{"the path ", "is not a regular file"}}, // crun, of a directory
}

// lastWords keeps the first of what a command printed, which a runtime did in its place where it could not be
// executed.
type lastWords struct {
	mu      sync.Mutex // guards printed: two streams write to it
	printed []byte
}

// mostWords is how much is kept. What runtimes say is shorter.
const mostWords = 4 << 10

// Write keeps what is printed.
func (l *lastWords) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.printed = append(l.printed, p[:min(len(p), mostWords-len(l.printed))]...)
	return len(p), nil
}

// tell leaves the code alone of an error that cannotInvoke knew, where the runtime has said the rest already.
func (l *lastWords) tell(err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var not *exitError
	words := strings.TrimSpace(string(l.printed))
	if words != "" && errors.As(err, &not) && strings.Contains(err.Error(), words) {
		return &exitError{code: not.code}
	}
	return err
}

// cannotInvoke gives an error its exit code where the runtime refused the command itself.
func cannotInvoke(err error) error {
	var had *exitError
	if err == nil || errors.As(err, &had) {
		return err
	}
	text := strings.ToLower(err.Error())
next:
	for _, i := range invocations {
		for _, w := range i.words {
			if !strings.Contains(text, w) {
				continue next
			}
		}
		return &exitError{code: i.code, err: err}
	}
	return err
}
