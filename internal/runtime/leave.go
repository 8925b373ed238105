package runtime

import (
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/fail"
	"berth/internal/monitor/wire"
)

// Leave says that the daemon is about to end. A start or an exec whose context ends from now on is left to the pod's
// monitor, which finishes it as it does when the daemon is killed; before, it ends what nobody waits for any more.
func Leave(r *Runtime) { r.left.Store(true) }

// goesOn reports whether an operation goes on after the daemon's end.
func goesOn(op string) bool { return op == wire.Start || op == wire.Exec }

// errLeft is the error of an operation that was left to the monitor.
var errLeft = fail.New(errdefs.ErrUnavailable, "this daemon ends; the pod's monitor goes on with it")

// handOverTime bounds how long the end of the daemon waits for monitors to take over the output of execs.
const handOverTime = time.Second

// HandOver waits until the output of the execs that were left is their monitors' to read, so that they can go on
// writing. Their contexts have ended.
func HandOver(r *Runtime) {
	for end := time.Now().Add(handOverTime); r.execs.Load() > 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}
