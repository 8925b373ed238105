package runtime

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"sort"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/timeouts"
)

// line is one line of a conversation: what the daemon says, or what it must hear, where "*" is anything but zero.
type line struct {
	Say         map[string]any
	Hear        map[string]any
	Descriptors int
}

// TestConversations has the monitor hold the conversations that were recorded for every version of the protocol. A
// field that is added may be heard beside what is written there; what is written there is heard for ever.
func TestConversations(t *testing.T) {
	files, err := filepath.Glob("testdata/v*.jsonl")
	if err != nil || len(files) == 0 {
		t.Fatalf("no conversations: %v", err)
	}
	sort.Strings(files)
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) { converse(newRig(t), f) })
	}
}

func converse(g *rig, file string) {
	ctr := newID()
	dir := g.cfg.bundle(g.pod, ctr)
	g.ok(os.MkdirAll(dir, 0o755))
	g.ok(os.MkdirAll(g.handler.Root, 0o755))
	terminal := shellProcess("exit 3")
	terminal.Terminal = true
	for name, v := range map[string]any{
		"config.json": g.spec(ctr, "cat; exit 7"), "process.json": shellProcess("exit 3"),
		"slow.json": shellProcess("sleep 100"), "terminal.json": terminal,
	} {
		g.ok(os.WriteFile(filepath.Join(dir, name), g.must(json.Marshal(v)).([]byte), 0o600))
	}
	g.made = append(g.made, ctr)
	g.links.remove(g.pod).shut().end()
	conn := g.must(dial(g.cfg.dir(g.pod))).(*net.UnixConn)
	defer conn.Close()
	names := strings.NewReplacer("$CTR", ctr, "$RUNTIME", host.runtime, "$ROOT", g.handler.Root, "$LOGS", g.logs)
	text := names.Replace(string(g.must(os.ReadFile(file)).([]byte)))
	for n, s := range strings.Split(strings.TrimSpace(text), "\n") {
		var l line
		g.ok(json.Unmarshal([]byte(s), &l))
		if l.Say != nil {
			g.say(conn, l)
			continue
		}
		if heard := g.hear(conn); !covers(l.Hear, heard) {
			g.Fatalf("line %d: heard %v, wanted %v", n+1, heard, l.Hear)
		}
	}
	for _, name := range []string{"v1/0.log", "v1/1.log"} {
		if _, err := os.Stat(filepath.Join(g.logs, name)); err != nil {
			g.Error(err)
		}
	}
	g.within(5*time.Second, "the monitor ends", func() bool {
		pids, _ := g.cfg.monitorGroup(g.pod).Pids()
		return len(pids) == 0
	})
}

func (g *rig) say(conn *net.UnixConn, l line) {
	var fds []int
	null := g.must(os.OpenFile(os.DevNull, os.O_RDWR, 0)).(*os.File)
	defer null.Close()
	for range l.Descriptors {
		fds = append(fds, int(null.Fd()))
	}
	_, _, err := conn.WriteMsgUnix(g.must(json.Marshal(l.Say)).([]byte), unix.UnixRights(fds...), nil)
	g.ok(err)
}

func (g *rig) hear(conn *net.UnixConn) (m map[string]any) {
	_ = conn.SetReadDeadline(time.Now().Add(timeouts.For(45 * time.Second)))
	buf := make([]byte, 64<<10)
	n, err := conn.Read(buf)
	g.ok(err)
	d := json.NewDecoder(bytes.NewReader(buf[:n]))
	g.ok(d.Decode(&m))
	return m
}

// covers says whether got has all that want has.
func covers(want, got any) bool {
	switch w := want.(type) {
	case string:
		if w == "*" {
			return got != nil && !reflect.ValueOf(got).IsZero()
		}
	case map[string]any:
		g, ok := got.(map[string]any)
		for k, v := range w {
			ok = ok && covers(v, g[k])
		}
		return ok && (w["error"] != nil || g["error"] == nil)
	case []any:
		g, ok := got.([]any)
		ok = ok && len(g) == len(w)
		for i := range w {
			ok = ok && covers(w[i], g[i])
		}
		return ok
	}
	return reflect.DeepEqual(want, got)
}
