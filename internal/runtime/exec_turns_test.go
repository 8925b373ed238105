package runtime

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestExecsTakeTurns has clients ask for many execs at once: few runtimes run at the same time, and those that hang
// keep no others from their turn.
func TestExecsTakeTurns(t *testing.T) {
	g := newRig(t)
	now, counts, hang := filepath.Join(g.logs, "now"), filepath.Join(g.logs, "counts"), filepath.Join(g.logs, "hang")
	g.ok(os.Mkdir(now, 0o755))
	real := g.handler.Path
	counting := g.program("counting-runtime", fmt.Sprintf(`case " $* " in *' exec '*)
	mkdir %[1]s/$$; ls %[1]s | wc -l >>%[2]s; sleep 0.1; while [ -e %[3]s ]; do sleep 1; done; rmdir %[1]s/$$;;
esac
exec %[4]s "$@"
`, now, counts, hang, real))
	ctr := g.run("sleep 1000", func(c *Create) { c.Handler.Path = counting })
	const clients = 30
	var all sync.WaitGroup
	for range clients {
		all.Go(func() { g.exec(ctr, "true") })
	}
	all.Wait()
	said, most := strings.Fields(string(g.must(os.ReadFile(counts)).([]byte))), 0
	for _, s := range said {
		most = max(most, g.must(strconv.Atoi(s)).(int))
	}
	if len(said) != clients || most > 4 {
		t.Errorf("%d runtimes ran, at most %d at the same time", len(said), most)
	}

	g.ok(os.WriteFile(hang, nil, 0o644))
	for range 8 {
		all.Go(func() {
			_, _ = g.Exec(g.Context(), g.pod, ctr, Exec{Process: shellProcess("true"), Timeout: 10 * time.Second})
		})
	}
	g.within(30*time.Second, "eight runtimes hang", func() bool {
		entries, _ := os.ReadDir(now)
		return len(entries) == 8
	})
	g.ok(os.Rename(hang, hang+".not"))
	g.exec(ctr, "true")
	all.Wait()
}
