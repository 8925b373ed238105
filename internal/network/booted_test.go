package network

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/internal/fail"
	"berth/test/timeouts"
)

// chained passes the result of the plugin before on, and does not find its way in a DEL without a namespace if its file
// "strict" is there.
const chained = `d=$(dirname "$0"); conf=$(cat)
case $CNI_COMMAND in
ADD) echo "$conf" | sed 's/.*"prevResult"://; s/,"type":"chained"}$//' ;;
DEL) [ -n "$CNI_NETNS" ] || [ ! -e "$d/strict" ] || {
	echo '{"code":999,"msg":"failed to Statfs \"\": no such file or directory"}'; exit 1; } ;;
esac`

// chain is bridge without masquerading, which a boot takes away, and a plugin after it.
var chain = strings.Replace(strings.Replace(bridgeV4, `"ipMasq": true`, `"ipMasq": false`, 1),
	`{"type": "portmap", "capabilities": {"portMappings": true}}`, `{"type": "chained"}`, 1)

// attachedBefore has a pod attached by a network of one plugin or more, called bad, each of which does del when it is
// not to ADD, and has the machine boot. The plugin is in dir.
func attachedBefore(t *testing.T, plugins int, del string, change ...func(*Config)) (h *host, p Pod, dir string) {
	t.Helper()
	dir, there := script(t, "bad", "if [ $CNI_COMMAND = ADD ]; then "+
		`echo '{"cniVersion": "1.0.0", "ips": [{"address": "10.9.8.7/24"}]}'; exit 0; fi`+"\n"+del)
	all := strings.TrimSuffix(strings.Repeat(`{"type":"bad"},`, plugins), ",")
	h = newHost(t, `{"cniVersion":"1.0.0","name":"n","plugins":[`+all+`]}`, append(change, there)...)
	p = h.pod()
	h.attach(p)
	h.ofAnotherBoot(p)
	return h, p, dir
}

// failedFromHere has DEL have failed often enough in this boot, and the first time so long ago that the next failure
// gives the attachment up.
func failedFromHere(a *attachment) {
	boot, now := bootTime()
	a.Refused = &refusals{Tries: refusedTries, Boot: boot, At: now - failedFor}
}

// TestAttachmentOfAnotherBootIsGivenUp has the plugins of a pod of the boot before be gone, or refuse what is left of
// it. The others undo their part, and the pod goes.
func TestAttachmentOfAnotherBootIsGivenUp(t *testing.T) {
	for name, c := range map[string]struct {
		change func(dir string) error
		says   string
	}{
		"missing": {func(dir string) error { return os.Remove(dir + "/chained") }, `"chained" is not an executable`},
		"refuses": {func(dir string) error { return os.WriteFile(dir+"/strict", nil, 0o644) }, "failed to Statfs"},
	} {
		t.Run(name, func(t *testing.T) {
			text := &logged{}
			dir, change := script(t, "chained", chained)
			h := newHost(t, chain, change, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(text, nil)) })
			p := h.pod()
			h.attach(p)
			must(t, c.change(dir))
			h.ofAnotherBoot(p)
			h.open()
			for range refusedTries + 1 { // at once
				err := h.Detach(t.Context(), p)
				var failed *DetachError
				if !errors.As(err, &failed) || failed.GivenUp != refusedFor || !strings.Contains(err.Error(), c.says) ||
					!strings.Contains(err.Error(), "the machine has booted since the pod was attached") {
					t.Fatalf("%v", err)
				}
			}
			if left, _ := filepath.Glob(h.leases + "/pods/10.*"); len(left) != 1 {
				t.Fatalf("leases %v", left)
			}
			h.refusedLongAgo(p)
			h.open()
			h.detach(p) // newHost wants no lease left
			if said := text.String(); !strings.Contains(said, "the attachment of a pod is given up: the machine has booted") ||
				!strings.Contains(said, strings.ReplaceAll(c.says, `"`, `\"`)) {
				t.Errorf("the log: %s", said)
			}
		})
	}
}

// TestFailureOfAnotherBootIsGivenUpLate has a plugin fail for what may pass, such as an API server whose node starts
// later, and be passed over when it does not. One that succeeds before undoes its part, and a plugin that is missing
// does not shorten that.
func TestFailureOfAnotherBootIsGivenUpLate(t *testing.T) {
	const connects = `echo '{"cniVersion":"1.0.0","code":999,"msg":"dial tcp 10.0.0.1:6443: connect: `
	for name, del := range map[string]string{
		"the API is away":    connects + `connection refused"}'; exit 1`,
		"the agent is away":  connects + `no such file or directory"}'; exit 1`,
		"refuses":            refusing,
		"try again later":    `echo '{"cniVersion":"1.0.0","code":11,"msg":"the agent starts"}'; exit 1`,
		"killed by a signal": `echo '{"cniVersion":"1.0.0","code":999,"msg":"no"}'; kill -9 $$`,
		"in no words":        `echo no such file or directory >&2; exit 2`,
		"hangs":              "sleep 1000",
	} {
		for _, back := range []bool{true, false} {
			t.Run(name+", back "+fmt.Sprint(back), func(t *testing.T) {
				dir, change := script(t, "bad", `d=$(dirname "$0"); conf=$(cat)
[ $CNI_COMMAND = DEL ] || { echo "$conf" | sed 's/.*"prevResult"://; s/,"type":"bad"}$//'; touch "$d/lease"; exit 0; }
[ ! -e "$d/away" ] || { `+del+`; }
rm -f "$d/lease"`)
				must(t, os.WriteFile(dir+"/chained", []byte("#!/bin/sh\n"+chained), 0o755))
				h := newHost(t, strings.Replace(chain, `{"type": "chained"}`, `{"type": "bad"}, {"type": "chained"}`, 1), change,
					func(c *Config) { c.DelTimeout = timeouts.For(3 * time.Second) })
				p := h.pod()
				h.attach(p)
				must(t, os.WriteFile(dir+"/away", nil, 0o644), os.Remove(dir+"/chained"))
				h.ofAnotherBoot(p)
				wants := func(after time.Duration) {
					t.Helper()
					err := h.Detach(t.Context(), p)
					var failed *DetachError
					if !errors.As(err, &failed) || failed.GivenUp != after ||
						!strings.Contains(fail.Details(err).Remedy+err.Error(), "5 failures in at least "+after.String()) {
						t.Fatalf("%v", err)
					}
				}
				wants(refusedFor)
				h.failedLongAgo(p, refusedFor)
				wants(failedFor)
				h.failedLongAgo(p, failedFor-time.Minute)
				h.open()
				wants(failedFor)
				if back {
					must(t, os.Remove(dir+"/away"))
				} else {
					h.failedLongAgo(p, failedFor)
				}
				h.detach(p) // newHost wants no lease of the other plugins left
				if _, err := os.Stat(dir + "/lease"); back != errors.Is(err, fs.ErrNotExist) {
					t.Errorf("the plugin's lease: %v", err)
				}
			})
		}
	}
}

// TestDetachHasTimeForAllOfIt has three plugins of a pod of the boot before hang to the end. A DEL that gives the
// attachment up comes to its end in the time that plugins have in a Detach, however long a setting lets each run.
func TestDetachHasTimeForAllOfIt(t *testing.T) {
	h, p, _ := attachedBefore(t, 3, "sleep 1000", func(c *Config) { c.DelTimeout = time.Second })
	h.edit(p, failedFromHere)
	ctx, cancel := context.WithTimeout(t.Context(), h.Deadline()-2*time.Minute-h.cfg.AddTimeout+timeouts.For(time.Second))
	defer cancel()
	must(t, h.Detach(ctx, p))

	h.cfg.DelTimeout = 10 * time.Minute
	h.Reconfigure(h.cfg)
	if d := h.Deadline(); d < 4*h.cfg.DelTimeout {
		t.Errorf("%v for DELs of %v", d, h.cfg.DelTimeout)
	}
	h.cfg.AddTimeout, h.cfg.DelTimeout = math.MaxInt64, math.MaxInt64
	h.Reconfigure(h.cfg)
	if d := h.Deadline(); d < 24*time.Hour {
		t.Errorf("%v", d)
	}
}

// TestEndOfTheDaemonIsNoFailure has the daemon end while DEL runs, when a failure would give the attachment up.
func TestEndOfTheDaemonIsNoFailure(t *testing.T) {
	h, p, dir := attachedBefore(t, 1, `touch "$(dirname "$0")/runs"; sleep 1000`)
	h.edit(p, failedFromHere)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- h.Detach(ctx, p) }()
	for range 1000 {
		if _, err := os.Stat(dir + "/runs"); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("given up")
	}
	must(t, h.Forget(p.ID))
}

// TestWhatABootDoesNotGiveUp has DEL fail for a pod of this boot whose namespace is gone.
func TestWhatABootDoesNotGiveUp(t *testing.T) {
	for name, del := range map[string]string{
		"try again later": `echo '{"cniVersion":"1.0.0","code":11,"msg":"the agent starts"}'; exit 1`,
		"refuses":         refusing,
		"missing":         "",
	} {
		t.Run(name, func(t *testing.T) {
			h, p, dir := attachedBefore(t, 1, del)
			h.edit(p, func(a *attachment) { failedFromHere(a); a.Boot = a.Refused.Boot })
			if del == "" {
				must(t, os.Remove(dir+"/bad"))
			}
			err := h.Detach(t.Context(), p)
			if err == nil || !strings.Contains(err.Error(), "remove "+h.cfg.CacheDir) {
				t.Errorf("%v", err)
			}
			must(t, h.Forget(p.ID))
		})
	}
}

// TestBootOfAnOlderRecord has a record of an earlier release say of no boot. The boot of its first DEL stands for it,
// also where that DEL came before.
func TestBootOfAnOlderRecord(t *testing.T) {
	for name, undoing := range map[string]bool{"attached": false, "undoing": true} {
		t.Run(name, func(t *testing.T) {
			h, p, _ := attachedBefore(t, 1, refusing)
			h.edit(p, func(a *attachment) { a.Boot, a.Undoing = "", undoing })
			if err := h.Detach(t.Context(), p); err == nil || !strings.Contains(err.Error(), "if it can never succeed") {
				t.Errorf("%v", err)
			}
			boot, _ := bootTime()
			if a, err := h.attachments.read(p.ID); err != nil || a.Boot != boot || a.Refused != nil {
				t.Fatalf("%+v, %v", a, err)
			}
			h.ofAnotherBoot(p)
			if err := h.Detach(t.Context(), p); err == nil {
				t.Fatal("given up at once")
			}
			h.failedLongAgo(p, failedFor)
			h.detach(p)
		})
	}
}
