//go:build berth_fault

package fault

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Enabled reports whether this binary was built with fault points.
const Enabled = true

// ErrInjected is what At returns for the action `error`.
var ErrInjected = errors.New("injected fault")

type action struct {
	verb, arg string
	nth       int
}

var state struct {
	once  sync.Once
	mu    sync.Mutex
	plan  map[string][]action // of a point, each for another pass
	seen  map[string]int
	trace *os.File
}

func load() {
	state.plan, state.seen = map[string][]action{}, map[string]int{}
	for _, item := range strings.Split(os.Getenv("BERTH_FAULT"), ",") {
		if name, what, ok := strings.Cut(item, "="); ok {
			state.plan[name] = append(state.plan[name], parse(what))
		}
	}
	if path := os.Getenv("BERTH_FAULT_TRACE"); path != "" {
		state.trace, _ = os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	}
}

func parse(what string) action {
	a := action{nth: 1}
	what, nth, counted := strings.Cut(what, "#")
	if n, err := strconv.Atoi(nth); counted && err == nil {
		a.nth = n
	}
	a.verb, a.arg, _ = strings.Cut(what, ":")
	return a
}

// At passes the named point and does what BERTH_FAULT asks for there.
func At(name string) error {
	state.once.Do(load)
	a, hit := pass(name)
	if !hit {
		return nil
	}
	switch a.verb {
	case "kill":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case "sleep":
		d, _ := time.ParseDuration(a.arg)
		time.Sleep(d)
	case "error":
		if a.arg != "" {
			return errors.New(a.arg)
		}
		return ErrInjected
	}
	return nil
}

func pass(name string) (action, bool) {
	state.mu.Lock()
	defer state.mu.Unlock()
	state.seen[name]++
	if state.trace != nil {
		_, _ = state.trace.WriteString(name + "\n")
	}
	for _, a := range state.plan[name] {
		if a.nth == state.seen[name] {
			return a, true
		}
	}
	return action{}, false
}
