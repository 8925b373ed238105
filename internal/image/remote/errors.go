package remote

import (
	"strings"
)

// Kind says what sort of failure an Error is.
type Kind int

// The kinds.
const (
	Refused         Kind = iota // the registry answers what no registry should, or refuses without a known reason
	Invalid                     // the credentials make no sense
	Misconfigured               // hosts.toml or a file it names cannot be read
	NotFound                    // no host has it
	Unauthenticated             // other credentials are wanted
	Denied                      // the credentials are known, and not enough
	Unavailable                 // not reachable, broken, stalled or overloaded: may work later
	Lied                        // what is served is not what was promised
)

// Error is a failure to read from the hosts of a repository. It never holds a secret. The end of the caller's context is
// no Error but its cause.
type Error struct {
	Kind Kind
	Op   string // such as `resolve docker.io/library/busybox:latest`
	Text string // what each host said, in the order they were asked
}

func (e *Error) Error() string { return e.Op + ": " + e.Text }

// scrub takes secrets out of a text.
func scrub(text string, secrets []string) string {
	for _, s := range secrets {
		if len(s) > 2 {
			text = strings.ReplaceAll(text, s, "[secret]")
		}
	}
	return text
}
