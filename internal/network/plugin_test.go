package network

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"berth/test/timeouts"
)

// TestStderrOfPluginsThatSucceed has a plugin log to stderr, as Multus does.
func TestStderrOfPluginsThatSucceed(t *testing.T) {
	text := &logged{}
	_, change := script(t, "spy", "echo \"I am $CNI_COMMAND\" >&2\n"+spy)
	h := newHost(t, `{"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "spy"}]}`, change, func(c *Config) {
		c.Logger = slog.New(slog.NewTextHandler(text, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	p := h.pod()
	h.attach(p)
	h.detach(p)
	for _, verb := range []string{"ADD", "DEL"} {
		if !strings.Contains(text.String(), `plugin=spy verb=`+verb+` pod=`+p.ID+` stderr="I am `+verb+`"`) {
			t.Errorf("of %s the log says: %s", verb, text)
		}
	}
}

// TestLongTextsOfPlugins has a plugin say a megabyte. What Berth tells of that and keeps is a few thousand bytes.
func TestLongTextsOfPlugins(t *testing.T) {
	long := `long=$(head -c 1000000 /dev/zero | tr '\0' x)`
	_, change := script(t, "long", long+`; echo "{\"code\":999,\"msg\":\"$long\",\"details\":\"$long\"}"; exit 1`)
	h := newHost(t, `{"cniVersion": "1.1.0", "name": "n", "plugins": [{"type": "long"}]}`, change)
	st := h.Status()
	for end := time.Now().Add(timeouts.For(30 * time.Second)); !strings.Contains(st.Message, "xxx"); st = h.Status() {
		if time.Now().After(end) {
			t.Fatalf("%.100s", st.Message)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if len(st.Message) > 4<<10 || !strings.HasPrefix(st.Message, `CNI plugin long (STATUS of network "n"): xxx`) {
		t.Errorf("%d bytes of status: %.100s", len(st.Message), st.Message)
	}
	p := h.pod()
	_, err := h.Attach(t.Context(), p)
	if err == nil || len(err.Error()) > 5<<10 {
		t.Errorf("%d bytes of error: %.100s", len(fmt.Sprint(err)), err)
	}
	must(t, h.Forget(p.ID))
}
