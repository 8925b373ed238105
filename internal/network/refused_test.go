package network

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/internal/fail"
	"berth/test/timeouts"
)

// tooSmall is a configuration whose ADD and DEL host-local refuses.
var tooSmall = strings.Replace(bridgeV4, "10.77.0.0/24", "10.1.2.3/32", 1)

// refusing is a plugin that refuses ADD and DEL, and says so.
const refusing = `echo '{"cniVersion":"1.0.0","code":999,"msg":"no such option"}'; exit 1`

// fails attaches a pod and wants that to fail.
func (h *host) fails(p Pod) {
	h.t.Helper()
	if _, err := h.Attach(h.t.Context(), p); err == nil {
		h.t.Fatal("attached")
	}
}

// refusedLongAgo has a pod's attachment be refused as often and as long as it takes to be given up with the next.
func (h *host) refusedLongAgo(p Pod) {
	h.t.Helper()
	h.failedLongAgo(p, refusedFor)
}

// failedLongAgo has DEL of a pod have failed often enough, and the first time so long ago.
func (h *host) failedLongAgo(p Pod, ago time.Duration) {
	h.t.Helper()
	h.edit(p, func(a *attachment) {
		if a.Refused == nil {
			h.t.Fatalf("%+v", a)
		}
		_, now := bootTime()
		a.Refused.Tries, a.Refused.At = refusedTries-1, now-ago
	})
}

// TestMendedConfigurationDetaches has the address plugin refuse a subnet, and detaches by the file that was mended.
func TestMendedConfigurationDetaches(t *testing.T) {
	h := newHost(t, tooSmall)
	p := h.pod()
	h.fails(p)
	err := h.Detach(t.Context(), p)
	var failed *DetachError
	if !errors.As(err, &failed) || !strings.Contains(err.Error(), "too small") ||
		!strings.Contains(err.Error(), "configuration, mend that, under the same name; ") ||
		!strings.HasPrefix(fail.Details(err).Remedy, "it is tried again; if the plugin refuses") {
		t.Fatalf("%v", err)
	}
	h.write("10-test.conflist", strings.Replace(bridgeV4, `"pods"`, `"others"`, 1))
	h.open()
	if err := h.Detach(t.Context(), p); err == nil {
		t.Error("detached by another network's configuration")
	}
	h.write("10-test.conflist", bridgeV4)
	h.open()
	h.detach(p)
}

// TestRefusedAttachmentIsGivenUp gives up an attachment that never succeeded: after a while, and with a DEL of the
// plugins that do not refuse.
func TestRefusedAttachmentIsGivenUp(t *testing.T) {
	text := &logged{}
	_, change := script(t, "refuses", refusing)
	h := newHost(t, strings.Replace(bridgeV4, `{"type": "portmap"`, `{"type": "refuses"}, {"type": "portmap"`, 1), change,
		func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(text, nil)) })
	p := h.pod()
	h.fails(p)
	leases := h.leases + "/pods/10.*"
	for range refusedTries + 1 { // at once
		if err := h.Detach(t.Context(), p); err == nil {
			t.Fatal("given up at once")
		}
	}
	if left, _ := filepath.Glob(leases); len(left) != 1 {
		t.Fatalf("leases %v", left)
	}
	h.refusedLongAgo(p)
	h.open()
	h.detach(p)
	if left, _ := filepath.Glob(leases); len(left) > 0 {
		t.Errorf("leases %v", left)
	}
	if !strings.Contains(text.String(), "the attachment of a pod is given up") {
		t.Errorf("the log: %s", text)
	}
}

// TestRefusalsTrustNoWallClock has the clock be set, and the machine boot, while an attachment is refused. That neither
// keeps it for ever nor gives it up at once.
func TestRefusalsTrustNoWallClock(t *testing.T) {
	boot, now := bootTime()
	if boot == "" || now <= 0 {
		t.Fatalf("boot %q, %v", boot, now)
	}
	const year = 365 * 24 * time.Hour
	for name, c := range map[string]struct {
		since time.Duration // from now
		boot  string
		at    time.Duration
		again bool // it begins anew
	}{
		"back":                     {year, boot, now, false},
		"ahead":                    {-year, boot, now, false},
		"back, earlier release":    {year, "", 0, true},
		"ahead, earlier release":   {-year, "", 0, true},
		"another boot, for longer": {-time.Hour, "another", now + year, true},
		"another boot, long ago":   {-time.Hour, "another", now - year, true},
	} {
		t.Run(name, func(t *testing.T) {
			_, change := script(t, "refuses", refusing)
			h := newHost(t, `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"refuses"}]}`, change)
			p := h.pod()
			h.fails(p)
			a, err := h.attachments.read(p.ID)
			must(t, err)
			a.Refused = &refusals{Tries: refusedTries, Since: time.Now().Add(c.since), Boot: c.boot, At: c.at}
			must(t, h.attachments.write(a))
			for range 2 {
				h.open()
				if err := h.Detach(t.Context(), p); err == nil {
					t.Fatal("given up at once")
				}
			}
			tries := refusedTries + 2
			if c.again {
				tries = 2
			}
			if a, err = h.attachments.read(p.ID); err != nil || a.Refused.Tries != tries || a.Refused.Boot != boot {
				t.Fatalf("%+v, %v; want %d tries", a.Refused, err, tries)
			}
			h.refusedLongAgo(p)
			h.detach(p)
		})
	}
}

// TestWhatIsNotGivenUp has DEL fail in ways that are no refusal, or for an attachment that may have succeeded.
func TestWhatIsNotGivenUp(t *testing.T) {
	for name, del := range map[string]string{
		"in no words":        "echo '{' >&2; exit 2",
		"try again later":    `echo '{"cniVersion":"1.0.0","code":11,"msg":"the agent starts"}'; exit 1`,
		"killed by a signal": `echo '{"cniVersion":"1.0.0","code":999,"msg":"no"}'; kill -9 $$`,
		"after a success":    "#attached\n" + refusing,
		"in a guess":         "#guess\n" + refusing,
	} {
		t.Run(name, func(t *testing.T) {
			add := refusing
			if strings.HasPrefix(del, "#") {
				add = `echo '{"cniVersion": "1.0.0", "ips": [{"address": "10.9.8.7/24"}]}'; exit 0`
			}
			_, change := script(t, "bad", "if [ $CNI_COMMAND = ADD ]; then "+add+"; fi\n"+del)
			h := newHost(t, `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"bad"}]}`, change)
			p := h.pod()
			_, _ = h.Attach(t.Context(), p)
			if strings.HasPrefix(del, "#guess") {
				must(t, os.Truncate(filepath.Join(h.cfg.CacheDir, p.ID), 100))
			}
			for range 2 {
				err := h.Detach(t.Context(), p)
				if err == nil || !strings.Contains(err.Error(), "if it can never succeed, remove "+h.cfg.CacheDir) {
					t.Errorf("%v", err)
				}
			}
			a, err := h.attachments.read(p.ID)
			if err != nil || a.Refused != nil || a.Guessed != strings.HasPrefix(del, "#guess") {
				t.Errorf("%+v, %v", a, err)
			}
			must(t, h.Forget(p.ID))
		})
	}
}

// TestSecondNameOfARecordIsAGuess has an attachment succeed, and a power cut leave of its record what was there before.
func TestSecondNameOfARecordIsAGuess(t *testing.T) {
	dir := t.TempDir()
	c := cache{dir, func(string) {}, func(string) {}}
	must(t, c.write(&attachment{Pod: "p"}), os.Rename(filepath.Join(dir, "p"), filepath.Join(dir, ".synced-p")),
		os.WriteFile(filepath.Join(dir, "p"), nil, 0o600))
	if a, err := c.read("p"); err != nil || !a.Guessed {
		t.Errorf("%+v, %v", a, err)
	}
}

// TestSlowRefusalIsGivenUp has a plugin take more than half of the time for a DEL to refuse it, by the configuration of
// the attachment and by that in force. Each run of the plugins has that time.
func TestSlowRefusalIsGivenUp(t *testing.T) {
	_, change := script(t, "slow", "sleep 1.2; "+refusing)
	list := `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"slow"}]}`
	h := newHost(t, list, change, func(c *Config) { c.DelTimeout = timeouts.For(2 * time.Second) })
	p := h.pod()
	h.fails(p)
	h.write("10-test.conflist", strings.Replace(list, `"slow"`, `"slow", "mended": true`, 1))
	h.open()
	if err := h.Detach(t.Context(), p); err == nil || strings.Contains(err.Error(), "killed") {
		t.Fatalf("%v", err)
	}
	h.refusedLongAgo(p)
	h.detach(p)
}
