package network

import (
	"log/slog"
	"strings"
	"testing"
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
