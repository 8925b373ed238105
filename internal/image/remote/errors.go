package remote

import (
	"strings"
)

// Error is a failure to read from the hosts of a repository. It never holds a secret. The end of the caller's context
// is no Error but its cause.
type Error struct {
	// Kind is one of package fail: ErrNotFound when no host has it, ErrUnauthenticated when other credentials are wanted,
	// ErrPermissionDenied when they are known and not enough, ErrInvalidArgument when they make no sense,
	// ErrRegistryUnavailable for what is not reachable, broken, stalled or overloaded and may work later, ErrDataLoss
	// when what is served is not what was promised, and ErrUnknown when a registry refuses for no known reason, or its
	// configuration cannot be read.
	Kind error
	Op   string // such as `resolve docker.io/library/busybox:latest`
	Text string // what each host said, in the order they were asked
}

func (e *Error) Error() string { return e.Op + ": " + e.Text }

// Unwrap returns the kind.
func (e *Error) Unwrap() error { return e.Kind }

// scrub takes secrets out of a text.
func scrub(text string, secrets []string) string {
	for _, s := range secrets {
		if len(s) > 2 {
			text = strings.ReplaceAll(text, s, "[secret]")
		}
	}
	return text
}
