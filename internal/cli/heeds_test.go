package cli

import (
	"os/signal"
	"slices"
	"syscall"
	"testing"
)

// TestIgnoredSignals is of a command that nohup has started: it does not heed what it was told to ignore.
func TestIgnoredSignals(t *testing.T) {
	signal.Ignore(syscall.SIGHUP)
	defer signal.Reset(syscall.SIGHUP)
	if got := heeds(syscall.SIGHUP, syscall.SIGTERM); !slices.Equal(got, heeds(syscall.SIGTERM)) || len(got) != 1 {
		t.Errorf("%v", got)
	}
	if got := heeds(syscall.SIGHUP); len(got) != 0 {
		t.Errorf("%v", got)
	}
}
