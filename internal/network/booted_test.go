package network

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
				if !errors.As(err, &failed) || !failed.GivenUp || !strings.Contains(err.Error(), c.says) ||
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

// TestWhatABootDoesNotGiveUp has DEL fail for what may pass, and for a pod of this boot whose namespace is gone.
func TestWhatABootDoesNotGiveUp(t *testing.T) {
	for name, c := range map[string]struct {
		del  string
		boot string
	}{
		"try again later":    {`echo '{"cniVersion":"1.0.0","code":11,"msg":"the agent starts"}'; exit 1`, "another"},
		"killed by a signal": {`echo '{"cniVersion":"1.0.0","code":999,"msg":"no"}'; kill -9 $$`, "another"},
		"this boot":          {refusing, ""},
		"missing, this boot": {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir, change := script(t, "bad", "if [ $CNI_COMMAND = ADD ]; then "+
				`echo '{"cniVersion": "1.0.0", "ips": [{"address": "10.9.8.7/24"}]}'; exit 0; fi`+"\n"+c.del)
			h := newHost(t, `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"bad"}]}`, change)
			p := h.pod()
			h.attach(p)
			h.ofAnotherBoot(p)
			a, err := h.attachments.read(p.ID)
			must(t, err)
			boot, now := bootTime()
			if a.Boot = c.boot; c.boot == "" {
				a.Boot = boot
			}
			a.Refused = &refusals{Tries: refusedTries, Boot: boot, At: now - refusedFor}
			must(t, h.attachments.write(a))
			if c.del == "" {
				must(t, os.Remove(dir+"/bad"))
			}
			err = h.Detach(t.Context(), p)
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
			_, change := script(t, "bad", "if [ $CNI_COMMAND = ADD ]; then "+
				`echo '{"cniVersion": "1.0.0", "ips": [{"address": "10.9.8.7/24"}]}'; exit 0; fi`+"\n"+refusing)
			h := newHost(t, `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"bad"}]}`, change)
			p := h.pod()
			h.attach(p)
			h.ofAnotherBoot(p)
			a, err := h.attachments.read(p.ID)
			must(t, err)
			a.Boot, a.Undoing = "", undoing
			must(t, h.attachments.write(a))
			if err := h.Detach(t.Context(), p); err == nil || !strings.Contains(err.Error(), "if it can never succeed") {
				t.Errorf("%v", err)
			}
			boot, _ := bootTime()
			if a, err = h.attachments.read(p.ID); err != nil || a.Boot != boot || a.Refused != nil {
				t.Fatalf("%+v, %v", a, err)
			}
			h.ofAnotherBoot(p)
			if err := h.Detach(t.Context(), p); err == nil {
				t.Fatal("given up at once")
			}
			h.refusedLongAgo(p)
			h.detach(p)
		})
	}
}
