package network

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"berth/internal/fail"
)

// An attachment whose ADD never succeeded is given up after so many DELs that a plugin refused, the first of them so
// long ago. An ADD that was cut off may have made something all the same, and a plugin may refuse a DEL because of what
// passes, such as an agent that starts again: the time is for that. Both are counted anew after a boot, when agents
// start, too, and some put their plugins there. So it is with one that was made in another boot, and whose namespace is
// gone, where plugins are missing or find nothing there. If they fail otherwise, it is given up after failedFor: nodes
// whose power returns may be up long before the API server that their plugins ask.
const (
	refusedTries = 5
	refusedFor   = 2 * time.Minute
	failedFor    = 30 * time.Minute
)

// refusals are the DELs of an attachment that count for its being given up (see undo.givesUpAfter), in one boot.
type refusals struct {
	Tries int           `json:"tries"`
	Since time.Time     `json:"since"`          // the first, for people: the clock may be set meanwhile
	Boot  string        `json:"boot,omitempty"` // missing in records of earlier releases
	At    time.Duration `json:"at,omitempty"`   // the first, by the time of that boot
}

// add counts a refusal. The first of a boot begins anew, whatever there is of another boot; r may be nil.
func (r *refusals) add() *refusals {
	boot, now := bootTime()
	if r == nil || r.Boot == "" || r.Boot != boot {
		r = &refusals{Since: time.Now(), Boot: boot, At: now}
	}
	r.Tries++
	return r
}

// enough reports whether an attachment is given up, if that takes so long.
func (r *refusals) enough(after time.Duration) bool {
	_, now := bootTime()
	return r.Tries >= refusedTries && now-r.At >= after
}

// bootTime returns the id of this boot and the time in it: for how long the machine has run, without the time that it
// was suspended, in which no agent starts either. Nobody sets that clock.
func bootTime() (boot string, now time.Duration) {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // of a clock that every Linux has
	return strings.TrimSpace(string(id)), time.Duration(t.Nano())
}

// passingCodes are the errors by which a plugin says that a later call may succeed (CNI specification, Error).
var passingCodes = []uint{types.ErrIOFailure, types.ErrTryAgainLater, types.ErrPluginNotAvailable,
	types.ErrLimitedConnectivity}

// refused reports whether a plugin ran to its end and said no, as it does for a configuration that it cannot use. A
// plugin that is missing, crashes, is killed or says to come again later has not refused: nobody knows what is there.
func refused(err error) bool {
	var failed *PluginError
	var exit *exec.ExitError
	return errors.As(err, &failed) && failed.Answer != nil && !slices.Contains(passingCodes, failed.Answer.Code) &&
		errors.As(failed.Err, &exit) && exit.Exited()
}

// notThere reports whether a plugin refused because a file is not there, such as the namespace that a boot has taken.
// It has no code for that. A socket that is not there says that an agent does not run yet; Go names the connect.
func notThere(err error) bool {
	var failed *PluginError
	if !refused(err) || !errors.As(err, &failed) {
		return false
	}
	text := strings.ToLower(failed.Answer.Error())
	return strings.Contains(text, "no such file or directory") && !strings.Contains(text, "connect")
}

// DetachError says that a pod could not be detached, and what to do about it.
type DetachError struct {
	Pod    string
	Record string // the file that keeps the attachment
	Err    error
	// GivenUp is after how long the attachment is given up if that goes on, 0 for never.
	GivenUp time.Duration
	Booted  bool // it is of another boot, and its namespace is gone
}

func (e *DetachError) Error() string { return e.Err.Error() + "; " + e.remedy() }

func (e *DetachError) remedy() string {
	forget := fmt.Sprintf("remove %s: the attachment is then forgotten, and what the plugin still holds for pod %s, such "+
		"as an address, is yours to clean up", e.Record, e.Pod)
	var missing *MissingPluginError
	switch {
	case e.GivenUp > 0 && e.Booted:
		return fmt.Sprintf("it is tried again; the machine has booted since the pod was attached, so the attachment is "+
			"given up after %d failures in at least %v, with a DEL of each plugin that does not fail", refusedTries, e.GivenUp)
	case errors.As(e.Err, &missing):
		return "if it is gone for good, " + forget
	case e.GivenUp > 0:
		return fmt.Sprintf("it is tried again; if the plugin refuses the network's configuration, mend that, under the "+
			"same name; the attachment never succeeded, and is given up after %d refusals in at least %v", refusedTries,
			e.GivenUp)
	}
	return "it is tried again; if it can never succeed, " + forget
}

// Details returns what to do about it, unless what has failed knows better.
func (e *DetachError) Details() fail.Detail {
	return fail.Detail{Pod: e.Pod, Remedy: cmp.Or(fail.Details(e.Err).Remedy, e.remedy())}
}

func (e *DetachError) Unwrap() error { return e.Err }
