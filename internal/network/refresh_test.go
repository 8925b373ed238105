package network

import (
	"os"
	"strings"
	"testing"
	"time"

	"berth/test/timeouts"
)

const statusPlugin = `d=$(dirname "$0")
if [ "$CNI_COMMAND" = STATUS ]; then
	echo x >>"$d/asked"
	[ -e "$d/slow" ] && sleep 0.3
	[ -e "$d/hang" ] && sleep 1000
	[ -e "$d/bad" ] && { echo '{"cniVersion":"1.1.0","code":50,"msg":"the agent is not up"}'; exit 1; }
fi
exit 0`

func TestStatusOfPlugins(t *testing.T) {
	dir, change := script(t, "agent", statusPlugin)
	h := newHost(t, `{"cniVersion": "1.1.0", "name": "n", "plugins": [{"type": "agent"}]}`, change)
	ready := func(want bool) {
		t.Helper()
		for end := time.Now().Add(timeouts.For(40 * time.Second)); h.Status().Ready != want; time.Sleep(
			5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%+v", h.Status())
			}
		}
	}
	ready(true)
	asked := func() int { data, _ := os.ReadFile(dir + "/asked"); return len(data) / 2 }
	n, at := asked(), h.status.last.Load().at
	time.Sleep(100 * time.Millisecond)
	for range 1000 {
		h.Status()
	}
	if got := asked(); got != n && time.Since(at) < statusFresh {
		t.Errorf("asked %d times while the answer was fresh", got-n)
	}
	must(t, os.WriteFile(dir+"/bad", nil, 0o644))
	ready(false)
	if st := h.Status(); st.Reason != NotReady ||
		st.Message != `CNI plugin agent (STATUS of network "n"): the agent is not up` {
		t.Errorf("%+v", st)
	}
	must(t, os.WriteFile(dir+"/hang", nil, 0o644))
	for end := time.Now().Add(statusFresh + time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		begun := time.Now()
		h.Status()
		if took := time.Since(begun); took > statusTimeout/2 {
			t.Fatalf("Status took %v", took)
		}
	}
	begun := time.Now()
	must(t, h.Close())
	if took := time.Since(begun); took > statusTimeout*3/4 {
		t.Errorf("Close took %v with a STATUS that hangs", took)
	}
	must(t, os.Remove(dir+"/hang"), os.Remove(dir+"/bad"))
	h.open()
	ready(true)
}

// TestStatusWhilePluginsAnswer asks for the status while a STATUS is outstanding: at first it waits for the answer, and
// after a change of the configuration that of the network as it was is told until the new one is there.
func TestStatusWhilePluginsAnswer(t *testing.T) {
	dir, change := script(t, "agent", statusPlugin)
	must(t, os.WriteFile(dir+"/slow", nil, 0o644))
	list := func(name, more string) string {
		return `{"cniVersion": "1.1.0", "name": "` + name + `", "plugins": [{"type": "agent"` + more + `}]}`
	}
	h := newHost(t, list("n", ""), change)
	if st := h.Status(); !st.Ready {
		t.Errorf("at first: %+v", st)
	}
	since := h.Status().Since
	for i, more := range []string{`, "a": 1`, `, "a": 2`} { // the second comes while the first is asked about
		old := h.current.Load()
		h.write("10-test.conflist", list("n", more))
		for end := time.Now().Add(timeouts.For(30 * time.Second)); ; time.Sleep(time.Millisecond) {
			st := h.Status()
			if !st.Ready || !st.Since.Equal(since) {
				t.Fatalf("after change %d: %+v", i+1, st)
			}
			now := h.current.Load()
			if now != old && (i == 0 || h.status.last.Load().conf == now.conf) {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("change %d is not answered: %+v", i+1, st)
			}
		}
	}
	to := func(name string) {
		h.write("10-test.conflist", list(name, ""))
		for h.current.Load().status.Network != name {
			time.Sleep(time.Millisecond)
		}
	}
	// Of another network nothing is known. One that hangs makes nobody wait for long, and holds up no other.
	must(t, os.Remove(dir+"/slow"), os.WriteFile(dir+"/hang", nil, 0o644))
	to("other")
	begun := time.Now()
	for range 100 {
		if st := h.Status(); st.Ready || !strings.Contains(st.Message, "have not answered STATUS yet") {
			t.Fatalf("while it hangs: %+v", st)
		}
	}
	if took := time.Since(begun); took > statusTimeout/2 {
		t.Errorf("100 times Status took %v", took)
	}
	must(t, os.Remove(dir+"/hang"))
	to("third")
	begun = time.Now()
	if st := h.Status(); !st.Ready {
		t.Errorf("of the third network, after %v: %+v", time.Since(begun), st)
	}
}
