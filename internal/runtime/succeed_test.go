package runtime

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestOneTryAtATime has many ask for a monitor that cannot be started. It is tried by one of them for all: at once when
// somebody asks anew, and with growing pauses else.
func TestOneTryAtATime(t *testing.T) {
	top := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		cfg := &Config{State: top, Log: slog.New(slog.NewTextHandler(&log, nil)), Monitor: "/nonexistent/berth-monitor"}
		l := newLink(cfg, strings.Repeat("0", idLength), newReplacements())
		for range 10 {
			go l.succeed()
		}
		time.Sleep(time.Minute)
		l.shut()
		synctest.Wait()
		if n := strings.Count(log.String(), "no monitor can take over"); n < 5 || n > 12 {
			t.Errorf("it was told of %d times in a minute:\n%s", n, log.String())
		}
	})
}
