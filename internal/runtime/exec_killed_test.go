package runtime

import (
	"testing"
	"time"
)

// TestExecAfterOneThatWasKilledHalfWay kills the runtime of an exec while it writes the pid file: runc leaves that
// under another name. The next exec has the same number.
func TestExecAfterOneThatWasKilledHalfWay(t *testing.T) {
	g := newRig(t)
	path := g.program("half", "case \"$*\" in *\" exec \"*) [ -e $0.once ] || { : >$0.once; for A; do "+
		"[ \"$B\" != --pid-file ] || : >${A%/*}/.${A##*/}; B=$A; done; sleep 1000; };; esac\n"+
		"exec "+host.runtime+" \"$@\"\n")
	ctr := g.create("sleep 1000", func(c *Create) { c.Handler.Path = path })
	g.ok(g.Start(t.Context(), g.pod, ctr, g.log(ctr), deadline))
	res, err := g.Exec(t.Context(), g.pod, ctr, Exec{Process: shellProcess("true"), Timeout: 500 * time.Millisecond})
	if err == nil && !res.TimedOut {
		t.Fatalf("its runtime was not killed: %+v", res)
	}
	for range 2 {
		if out, code := g.exec(ctr, "echo hi"); out != "hi\n" || code != 0 {
			t.Errorf("the next exec: %q, %d", out, code)
		}
	}
}
