// Package crash kills the daemon at every fault point that it passes, and wants that nobody notices.
//
// The points are not listed anywhere: each scenario is run once with tracing on, and what it passed is the matrix. So a
// step that is added to a plan is covered from that day on. For each point a daemon is started that dies there,
// requests are made until it does, and a daemon without faults is started in its place. What ran must still run; the
// request that was cut off is made again and must succeed; in the end everything is removed, and nothing may be left.
//
// Without more, each point is killed at once, at its first occurrence, in one scenario. BERTH_SOAK=1 runs every point
// in every scenario at every occurrence.
package crash

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/fixture"
	"berth/test/hygiene"
	"berth/test/node"
	"berth/test/timeouts"
)

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		fmt.Println("crash: these tests need root")
		os.Exit(1)
	}
	os.Exit(hygiene.Main(m, pool.close))
}

// A scenario is a life with something planned: what each daemon in turn is told to do at its fault points. The point
// under test takes the place of POINT.
type scenario struct {
	name   string
	edit   func(*v1.PodSandboxConfig)
	faults []string // for the first daemon, the second, …; later ones have none
}

const point = "POINT"

// planted is the error that a daemon is told to have at a point.
const planted = "=error:planted"

// plants says whether the first daemon is told to have an error at a point.
func (s scenario) plants(at string) bool { return strings.HasPrefix(s.faults[0], at+planted) }

func plain(*v1.PodSandboxConfig) {}

func sharedPID(c *v1.PodSandboxConfig) {
	c.Linux.SecurityContext.NamespaceOptions.Pid = v1.NamespaceMode_POD
}

// userns gives the pod ids of its own: what is made for it belongs to others, and more is mounted.
func userns(c *v1.PodSandboxConfig) {
	ids := []*v1.IDMapping{{HostId: 1 << 29, ContainerId: 0, Length: 65536}}
	c.Linux.SecurityContext.NamespaceOptions.UsernsOptions = &v1.UserNamespace{Mode: v1.NamespaceMode_POD, Uids: ids,
		Gids: ids}
}

// inUserns are the steps that a user namespace makes another thing.
var inUserns = []string{"pod.files.", "pod.shm.", "pod.namespaces.", "container.rootfs.", "container.process."}

// scenarios are the ways to meet a point. Those after the first three need the name of a point themselves, taken from
// what the first has passed.
func scenarios(passed []string) []scenario {
	list := []scenario{
		{"life", plain, []string{point}},
		{"shared-pid", sharedPID, []string{point}},
		{"userns", userns, []string{point}},
	}
	add := func(name, after string, fault func(at string) []string) {
		if at := last(passed, after); at != "" {
			list = append(list, scenario{name, plain, fault(at)})
		}
	}
	failing := func(at string) []string { return []string{at + planted + "," + point} }
	recovering := func(at string) []string { return []string{at + "=kill", point} }
	add("undo-pod", "pod.*.do.after", failing)
	add("undo-container", "container.*.do.after", failing)
	add("undo-pull", "image.*.after", failing)
	add("recover-run", "pod.*.do.after", recovering)
	add("recover-create", "container.*.do.after", recovering)
	add("recover-stop", "pod.*.undo.before", recovering)
	return list
}

// last finds the last point passed that matches the pattern.
func last(passed []string, pattern string) string {
	for i := len(passed) - 1; i >= 0; i-- {
		if ok, _ := filepath.Match(pattern, passed[i]); ok {
			return passed[i]
		}
	}
	return ""
}

// A kill is one cell of the matrix.
type kill struct {
	scenario
	point      string
	occurrence int
}

func (k kill) String() string { return fmt.Sprintf("%s/%s#%d", k.name, k.point, k.occurrence) }

func (k kill) run(n *node.Node) error {
	return run(n, k.scenario, fmt.Sprintf("%s=kill#%d", k.point, k.occurrence))
}

// mayBeMissed says that a life may pass the point less often than another: a record is written behind what happens
// (ADR 44), and two changes that come close together are one write.
func (k kill) mayBeMissed() bool { return strings.HasPrefix(k.point, "record.") }

var errNotPassed = errors.New("the point was not passed")

// TestMatrix learns the points and then kills the daemon at each.
func TestMatrix(t *testing.T) {
	runtime := node.Crun
	if one := os.Getenv("BERTH_TEST_RUNTIME"); one != "" {
		runtime = one
	}
	kills := learn(t, runtime)
	t.Logf("%d kills", len(kills))
	for _, k := range kills {
		t.Run(k.String(), func(t *testing.T) {
			t.Parallel()
			n := pool.take(t, runtime)
			err := k.run(n)
			for tries := 1; errors.Is(err, errNotPassed) && k.mayBeMissed() && tries < 6; tries++ {
				if err = n.RemoveAll(); err == nil {
					err = k.run(n)
				}
			}
			if errors.Is(err, errNotPassed) && k.mayBeMissed() && k.occurrence > 1 {
				pool.give(n, true)
				t.Skipf("six lives wrote a record less often than %d times: changes were one write each time", k.occurrence)
			}
			if err != nil {
				t.Errorf("%v\nthe daemons' log ends with:\n%s", err, n.DaemonLog(40))
			}
			pool.give(n, err == nil)
		})
	}
}

// learn runs every scenario with tracing and returns what is to be killed.
func learn(t *testing.T, runtime string) []kill {
	t.Helper()
	life := passed(t, runtime, scenarios(nil)[0])
	if len(life) == 0 {
		t.Fatal("no fault point was passed: is this the build with the tag berth_fault?")
	}
	soak := os.Getenv("BERTH_SOAK") != ""
	var kills []kill
	seen := map[string]bool{}
	for _, s := range scenarios(life) {
		times := map[string]int{}
		for _, p := range passed(t, runtime, s) {
			times[p]++
			key := p
			if strings.HasPrefix(s.name, "recover") {
				key = "recover " + p // a point met in recovery is another thing than the same met in a request
			}
			if s.name == "userns" && slices.ContainsFunc(inUserns, func(step string) bool {
				return strings.HasPrefix(p, step)
			}) {
				key = "userns " + p
			}
			if strings.HasPrefix(p, "monitor.") && s.name != "life" && s.name != "shared-pid" {
				continue // a point of the monitor, which must be started by the first daemon
			}
			if strings.HasPrefix(p, "monitor.log.") {
				continue // every monitor of the pod would die there: TestLogOfAMonitorKilledAt of internal/runtime
			}
			if times[p] == 1 && s.plants(p) {
				continue // the error comes there, and a kill at the same pass would come in its place
			}
			if soak || !seen[key] {
				kills, seen[key] = append(kills, kill{s, p, times[p]}), true
			}
		}
	}
	return kills
}

// passed runs a scenario without a kill and returns the points that the daemon under test passed.
func passed(t *testing.T, runtime string, s scenario) []string {
	t.Helper()
	n := pool.take(t, runtime)
	trace := filepath.Join(t.TempDir(), "trace")
	err := run(n, s, trace)
	log := n.DaemonLog(40)
	pool.give(n, err == nil)
	if err != nil {
		t.Fatalf("%s, without a kill: %v\nthe daemon's log ends with:\n%s", s.name, err, log)
	}
	data, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(data))
}

// run lives a life with what is planned at the fault points: a kill, or, when fault is the path of a file, a trace.
func run(n *node.Node, s scenario, fault string) error {
	r := &runner{n: n, scenario: s, fault: fault, life: newLife(n, image(), s.edit)}
	if err := r.start(); err != nil {
		return err
	}
	for _, st := range steps {
		if err := r.step(st); err != nil {
			return fmt.Errorf("%s: %w", st.name, err)
		}
		if st.name == "start container" && r.killsMonitor() {
			if err := r.replaceDaemon(); err != nil {
				return err
			}
		}
	}
	return r.finish()
}

// runner lives one life through as many daemons as it takes.
type runner struct {
	scenario
	n       *node.Node
	fault   string
	life    *life
	started int  // daemons so far
	died    int  // of them by a fault
	planted bool // the planted error was seen
}

// env is what the next daemon is told.
func (r *runner) env() []string {
	if r.started >= len(r.faults) {
		return nil
	}
	plan := r.faults[r.started]
	if !strings.HasPrefix(r.fault, "/") {
		return []string{"BERTH_FAULT=" + strings.Replace(plan, point, r.fault, 1)}
	}
	if !strings.Contains(plan, point) {
		return []string{"BERTH_FAULT=" + plan}
	}
	return []string{"BERTH_FAULT=" + strings.Trim(strings.Replace(plan, point, "", 1), ","),
		"BERTH_FAULT_TRACE=" + r.fault}
}

// start starts daemons until one serves: one that is to die in its recovery does so.
func (r *runner) start() error {
	if err := r.n.Stop(); err != nil {
		return err
	}
	for {
		env := r.env()
		r.started++
		err := r.n.Start(env...)
		if err == nil {
			return nil
		}
		if env == nil || r.n.Died(0) != nil {
			return fmt.Errorf("start: %w", err)
		}
		r.died++
	}
}

// step makes a request until it succeeds. It may fail for a daemon that died, and once for the planted error; nothing
// else is forgiven.
func (r *runner) step(st step) error {
	for range 5 {
		err := st.do(r.life)
		if err == nil {
			return nil
		}
		if errors.Is(err, errWrong) && r.n.Died(0) != nil {
			return err
		}
		if !r.planted && (strings.Contains(err.Error(), "planted") || r.killsMonitor()) {
			r.planted = true
			continue
		}
		if r.n.Died(timeouts.For(20*time.Second)) != nil {
			return fmt.Errorf("after %d deaths: %w", r.died, err)
		}
		if err := r.revive(); err != nil {
			return err
		}
	}
	return errors.New("failed five times over")
}

// killsMonitor says whether it is the pod's monitor that dies at the point, and the daemon lives.
func (r *runner) killsMonitor() bool { return strings.HasPrefix(r.fault, "monitor.") }

// replaceDaemon starts a daemon without faults beside a monitor that has them, so that the monitor which takes over has
// none.
func (r *runner) replaceDaemon() error {
	if err := r.n.Kill9(); err != nil {
		return err
	}
	if err := r.n.Start(); err != nil {
		return err
	}
	return r.life.holds()
}

// revive starts the next daemon and checks that nobody has noticed.
func (r *runner) revive() error {
	for {
		r.died++
		if err := r.start(); err != nil {
			return err
		}
		err := r.life.holds()
		if err == nil || r.n.Died(timeouts.For(10*time.Second)) != nil {
			return err
		}
	}
}

// finish checks that the daemon has died where it should, and that nothing is left.
func (r *runner) finish() error {
	killing := !strings.HasPrefix(r.fault, "/")
	want := len(r.faults)
	if !killing || r.killsMonitor() || !strings.Contains(r.faults[len(r.faults)-1], point) {
		want--
	}
	last := time.Duration(0)
	if r.died < want { // it is to die after its last answer
		last = timeouts.For(10 * time.Second)
	}
	if r.n.Died(last) == nil {
		if err := r.revive(); err != nil {
			return err
		}
	}
	if strings.Contains(r.faults[0], planted) && !r.planted && r.died == 0 {
		return errors.New("the planted error was not seen")
	}
	if r.died < want {
		return fmt.Errorf("the daemon died %d times, and should have %d times: %w", r.died, want, errNotPassed)
	}
	if err := r.n.RemoveAll(); err != nil {
		return err
	}
	return errors.Join(r.n.Clean(timeouts.For(10*time.Second)), sameImages(r.n))
}

var baseline struct {
	sync.Mutex
	files string
}

// sameImages checks that the image store, with everything removed, is as it was the first time that it was empty.
func sameImages(n *node.Node) error {
	deadline := time.Now().Add(timeouts.For(10 * time.Second))
	for {
		files := imageFiles(n)
		baseline.Lock()
		if baseline.files == "" {
			baseline.files = files
		}
		want := baseline.files
		baseline.Unlock()
		if files == want {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("left in the image store after the image was removed:\n%s\nwanted:\n%s", files, want)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func imageFiles(n *node.Node) string {
	var b strings.Builder
	root := n.Root + "/images"
	b.WriteString("files:\n")
	_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil {
			b.WriteString(strings.TrimPrefix(path, root) + "\n")
		}
		return nil
	})
	return b.String()
}

func image() string { return pool.registry.Ref("crash:v1") }

// push builds the image of the matrix: two small layers, so that a pull has more than one of everything.
func push(r *fixture.Registry) error {
	recipe, err := fixture.WebRecipe()
	if err != nil {
		return err
	}
	recipe.Layers = append(recipe.Layers, []fixture.File{{Name: "etc/"}, {Name: "etc/second", Body: []byte("layer\n")}})
	img, err := recipe.Build()
	if err != nil {
		return err
	}
	_, err = r.Push("crash:v1", img)
	return err
}
