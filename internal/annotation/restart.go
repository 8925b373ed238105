package annotation

import (
	"errors"
	"strconv"
	"strings"
)

// When says after which ends a container starts again by itself. The names are Docker's.
type When string

// The policies. A container that the machine's restart has ended has failed, since its exit code is unknown. Always
// starts then also what had been stopped before.
const (
	Never         When = "no"
	OnFailure     When = "on-failure"
	UnlessStopped When = "unless-stopped"
	Always        When = "always"
)

// Restart is a policy. Most is how often in a row a container that fails is started again; 0 is without end.
type Restart struct {
	When When
	Most int
}

var errRestart = errors.New("there is no, on-failure, on-failure:TIMES, unless-stopped and always")

// RestartPolicy is the policy that a container asks for, Never where it asks for none.
func RestartPolicy(all map[string]string) (Restart, error) {
	value, asked := all[KeyRestart]
	if !asked {
		return Restart{When: Never}, nil
	}
	r, err := ParseRestart(value)
	if err != nil {
		return Restart{When: Never}, invalid(KeyRestart, value, err)
	}
	return r, nil
}

// ParseRestart reads a policy as it is written on a command line.
func ParseRestart(text string) (Restart, error) {
	when, times, limited := strings.Cut(text, ":")
	r := Restart{When: When(when)}
	switch {
	case r.When == OnFailure && limited:
		n, err := strconv.ParseUint(times, 10, 31)
		if err != nil || n == 0 {
			return Restart{When: Never}, errRestart
		}
		r.Most = int(n)
	case limited || r.When != Never && r.When != OnFailure && r.When != UnlessStopped && r.When != Always:
		return Restart{When: Never}, errRestart
	}
	return r, nil
}

// Restarts is how often in a row Berth has started a container again by itself.
func Restarts(all map[string]string) int {
	n, err := strconv.ParseUint(all[KeyRestarts], 10, 31)
	if err != nil {
		return 0
	}
	return int(n)
}

// Removal says when a container is removed that has ended.
type Removal string

// The removals that there are.
const (
	Stays Removal = "false"
	AtEnd Removal = "true"
	Later Removal = "later" // than whoever ran it in the foreground would have removed it
)

// Remove says when a container is removed.
func Remove(all map[string]string) (Removal, error) {
	value, asked := all[KeyRemove]
	switch r := Removal(value); {
	case !asked:
		return Stays, nil
	case r == Stays || r == AtEnd || r == Later:
		return r, nil
	}
	return Stays, invalid(KeyRemove, value, errRemove)
}

var errRemove = errors.New("there is true, later and false")
