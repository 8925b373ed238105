package cli

import (
	"errors"
	"strings"
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
	{exitNoCommand, []string{"executable file", "not found in"}}, // crun, and runc of a name without a path
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
	{exitCannotInvoke, []string{"the path ", "is not executable"}}, // crun
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
