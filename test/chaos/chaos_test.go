package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/isolate"
	"berth/test/node"
	"berth/test/timeouts"
	"berth/test/volume"
)

// guest makes the test binary a program that runs isolated, or one that has a disk frozen; its value says which.
const guest = "CHAOS_TEST_GUEST"

func TestMain(m *testing.M) {
	switch how := os.Getenv(guest); {
	case os.Getenv(freezerVariable) != "":
		_, _, _ = Freezer() // it does not return
	case strings.HasPrefix(how, "freeze "):
		os.Exit(freezeAndWait(strings.TrimPrefix(how, "freeze ")))
	case how == "plant":
		inside, err := isolate.Enter()
		if err == nil && inside {
			err = plantAndLook()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	default:
		os.Exit(m.Run())
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("it needs root")
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func self(t *testing.T, how string) *exec.Cmd {
	t.Helper()
	path, err := os.Executable()
	must(t, err)
	cmd := exec.Command(path)
	cmd.Env = append(os.Environ(), guest+"="+how)
	return cmd
}

// ticks is a log with the lines from one number to another.
func ticks(from, to int) string {
	var b strings.Builder
	for i := from; i <= to; i++ {
		fmt.Fprintf(&b, "2026-01-02T03:04:05Z stdout F tick %d\n", i)
	}
	return b.String()
}

func TestLogs(t *testing.T) {
	const entry = "2026-01-02T03:04:05Z stdout "
	for name, c := range map[string]struct {
		how  ending
		text string
		want Loss
	}{
		"whole":                      {ends, ticks(1, 9), ""},
		"in pieces":                  {ends, ticks(1, 8) + entry + "P ti\n" + entry + "F ck 9\n", ""},
		"the end is missing":         {ends, ticks(1, 8), Incomplete},
		"the middle is missing":      {ends, ticks(1, 4) + ticks(6, 9), Incomplete},
		"a line is there twice":      {ends, ticks(1, 4) + ticks(4, 9), Doubled},
		"all is there twice":         {ends, ticks(1, 9) + ticks(1, 9), Doubled},
		"empty":                      {ends, "", Incomplete},
		"an entry is torn":           {ends, ticks(1, 9) + "2026-01-02T03", Incomplete},
		"zeroes":                     {ends, ticks(1, 5) + "\x00\x00\x00", Incomplete},
		"said bye":                   {obeys, ticks(1, 3) + entry + "F bye\n", ""},
		"did not say bye":            {obeys, ticks(1, 3), Incomplete},
		"said bye, and lost a line":  {obeys, ticks(1, 3) + ticks(5, 6) + entry + "F bye\n", Incomplete},
		"killed":                     {isKilled, ticks(1, 3), ""},
		"killed in a line":           {isKilled, ticks(1, 3) + entry + "P ti\n", ""},
		"killed, and lost a line":    {isKilled, ticks(1, 3) + ticks(5, 6), Incomplete},
		"stopped in a line":          {obeys, ticks(1, 3) + entry + "P by\n", Incomplete},
		"a line that nobody wrote":   {isKilled, ticks(1, 3) + entry + "F hello\n", Incomplete},
		"goes on after it said bye":  {obeys, ticks(1, 3) + entry + "F bye\n" + ticks(4, 4), Incomplete},
		"the beginning is not there": {isKilled, ticks(2, 3), Incomplete},
	} {
		var got Loss
		if problem := (numbered{c.how, 9}).checkText(c.text); problem != nil {
			got = problem.loss
		}
		if got != c.want {
			t.Errorf("%s: %q, wanted %q", name, got, c.want)
		}
	}
}

// onStage is a stage without a runtime, whose report the test reads.
func onStage(t *testing.T) (*stage, *strings.Builder) {
	t.Helper()
	out := &strings.Builder{}
	s := newStage(Options{Dir: t.TempDir(), Peer: Berth, Out: out})
	s.report = newReport(s.Options)
	return s, out
}

// TestJudgement counts ends of containers as what they are.
func TestJudgement(t *testing.T) {
	killed := func(h *history, what ...class) {
		for _, c := range what {
			h.killed(c, process{argv: []string{"berth-monitor", "/run/pods/" + strings.Repeat("a", 64)}})
		}
	}
	for name, c := range map[string]struct {
		code   int32
		reason string
		log    string
		struck []class
		want   []Loss
	}{
		"well":                         {7, "Error", ticks(1, 9), nil, nil},
		"unknown":                      {255, "Unknown", ticks(1, 9), nil, []Loss{LostExit}},
		"another":                      {0, "Completed", ticks(1, 9), nil, []Loss{WrongExit}},
		"lines and code":               {255, "Unknown", ticks(1, 8), nil, []Loss{LostExit, Incomplete}},
		"unknown, the daemon killed":   {255, "Unknown", ticks(1, 9), []class{daemon}, []Loss{LostExit}},
		"unknown, both killed":         {255, "Unknown", ticks(1, 9), []class{monitor, daemon}, []Loss{Unpromised}},
		"lines, after the daemon died": {7, "Error", ticks(1, 8), []class{daemon}, []Loss{Incomplete}},
	} {
		s, _ := onStage(t)
		killed(s.history, c.struck...)
		l := newLifeOf(s, "pod-0-0")
		l.id = strings.Repeat("a", 64)
		box := &container{l: l, name: "c0", code: 7, log: numbered{ends, 9}}
		must(t, os.MkdirAll(filepath.Dir(box.logPath()), 0o755))
		must(t, os.WriteFile(box.logPath(), []byte(c.log), 0o644))
		box.judge(&cri.ContainerStatus{ExitCode: c.code, Reason: c.reason})
		var got []Loss
		for _, l := range losses {
			got = append(got, slices.Repeat([]Loss{l}, s.report.losses[l])...)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, wanted %q", name, got, c.want)
		}
	}
}

// TestJudgementOfCRIO counts what CRI-O does otherwise: each container has a monitor, and a stop without grace begins
// with the signal.
func TestJudgementOfCRIO(t *testing.T) {
	pod, mine, others := strings.Repeat("a", 64), strings.Repeat("b", 64), strings.Repeat("c", 64)
	for name, c := range map[string]struct {
		killed string // the container whose monitor was
		how    ending
		code   int32
		want   Loss
	}{
		"the monitor and the daemon killed":       {mine, ends, 255, Unpromised},
		"the monitor of another and the daemon":   {others, ends, 255, LostExit},
		"obeyed a stop without grace":             {others, isKilled, obedient, ""},
		"ended by itself in a stop without grace": {others, isKilled, 1, WrongExit},
	} {
		s, _ := onStage(t)
		s.Peer = CRIO
		s.history.made(mine, pod)
		s.history.killed(daemon, process{})
		s.history.killed(monitor, process{argv: []string{"conmon", "-b", "/run/crio/" + c.killed, "-c", c.killed}})
		l := newLifeOf(s, "pod-0-0")
		l.id = pod
		box := &container{l: l, name: "c0", code: 137, log: numbered{c.how, 9}}
		must(t, os.MkdirAll(filepath.Dir(box.logPath()), 0o755))
		must(t, os.WriteFile(box.logPath(), []byte(ticks(1, 9)), 0o644))
		reason := "Unknown"
		if c.code != 255 {
			reason = "Error"
		}
		box.judge(&cri.ContainerStatus{ExitCode: c.code, Reason: reason})
		var got Loss
		for l := range s.report.losses {
			got = l
		}
		if got != c.want {
			t.Errorf("%s: %q, wanted %q", name, got, c.want)
		}
	}
}

// TestReportFails wants a run to fail when it lost something, and when it did nothing.
func TestReportFails(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(*Report)
		want bool
	}{
		"nothing was struck":    {func(r *Report) { r.podDone() }, true},
		"no pod went through":   {func(r *Report) { r.struck("kill daemon") }, true},
		"well":                  {func(r *Report) { r.struck("kill daemon"); r.podDone() }, false},
		"nothing was to strike": {func(r *Report) { r.options.Mix = "none"; r.podDone() }, false},
		"what is not promised":  {func(r *Report) { r.struck("kill daemon"); r.podDone(); r.lose(Unpromised, "x") }, false},
		"a loss":                {func(r *Report) { r.struck("kill daemon"); r.podDone(); r.lose(Left, "x") }, true},
	} {
		s, _ := onStage(t)
		c.do(s.report)
		if got := s.report.Failed(); got != c.want {
			t.Errorf("%s: failed is %v\n%s", name, got, s.report.Table())
		}
	}
}

// TestSchedule wants a seed to give the same strikes again, and every mix to name each of its actions sometime.
func TestSchedule(t *testing.T) {
	plans := func(seed uint64, m mix) (all []plan) {
		s, _ := onStage(t)
		s.Seed, s.Longest = seed, time.Minute
		k := newStriker(s, nil, m)
		for range 2000 {
			all = append(all, k.next())
		}
		return all
	}
	for name, m := range mixes {
		if name == "none" {
			continue
		}
		first := plans(1, m)
		if !slices.Equal(first, plans(1, m)) || slices.Equal(first, plans(2, m)) {
			t.Errorf("%s: a seed does not give its own schedule", name)
		}
		for _, w := range m {
			if !slices.ContainsFunc(first, func(p plan) bool { return p.action == w.action }) {
				t.Errorf("%s: %s never comes", name, w.action)
			}
		}
		if slices.ContainsFunc(first, func(p plan) bool { return p.lasts > time.Minute }) {
			t.Errorf("%s: something lasts for more than a minute", name)
		}
	}
	for _, word := range []string{"", "nobody", "stop:nobody", "freeze:daemon", "daemon,"} {
		if _, err := mixOf(word); err == nil {
			t.Errorf("%q is taken for a mix", word)
		}
	}
	m, err := mixOf("monitor,freeze:records,slow:logs")
	if err != nil || len(m) != 3 || m[2].String() != "slow logs" || !m.disks() {
		t.Errorf("read as %v, %v", m, err)
	}
	if m, err := mixOf("runtime,stop:monitor"); err != nil || len(m) != 2 || m[1].String() != "stop monitor" {
		t.Errorf("%v, %v", m, err)
	}
}

// TestRepeat makes a request again until it is through, cannot get through, or has been made for too long.
func TestRepeat(t *testing.T) {
	c := &client{limit: time.Minute}
	n := 0
	must(t, c.repeat("x", func(context.Context) error {
		if n++; n < 3 {
			return errors.New("not yet")
		}
		return nil
	}))
	if n != 3 || c.through.Load() != 1 {
		t.Errorf("it was made %d times, %d are through", n, c.through.Load())
	}
	n = 0
	err := c.repeat("x", func(context.Context) error { n++; return final{os.ErrNotExist} })
	if n != 1 || !errors.Is(err, os.ErrNotExist) || errors.Is(err, errStuck) {
		t.Errorf("%d times: %v", n, err)
	}
	c.limit = 0
	err = c.repeat("x", func(context.Context) error { return os.ErrExist })
	if !errors.Is(err, errStuck) || !errors.Is(err, os.ErrExist) {
		t.Errorf("without time: %v", err)
	}
}

// TestService has a program started again that was killed, and tells of one that ended by itself.
func TestService(t *testing.T) {
	ended := make(chan string, 100)
	script := filepath.Join(t.TempDir(), "script")
	must(t, os.WriteFile(script, []byte("#!/bin/sh\nread -r x </dev/null; exec sleep 1000\n"), 0o755))
	s, err := startService(func() *exec.Cmd { return exec.Command(script) }, filepath.Join(t.TempDir(), "log"),
		func(how string) { ended <- how })
	must(t, err)
	first := s.pid()
	must(t, syscall.Kill(first, syscall.SIGKILL))
	next := awaitOther(t, s, first)
	if len(ended) > 0 {
		t.Errorf("it was killed, and is said to have ended: %s", <-ended)
	}
	must(t, syscall.Kill(next, syscall.SIGINT))
	select {
	case <-ended:
	case <-time.After(timeouts.For(30 * time.Second)):
		t.Error("it ended, and nobody was told")
	}
	awaitOther(t, s, next)
	must(t, s.stop(timeouts.For(30*time.Second)))
	if s.pid() != 0 {
		t.Error("it runs on")
	}
}

func awaitOther(t *testing.T, s *service, than int) int {
	t.Helper()
	deadline := time.Now().Add(timeouts.For(30 * time.Second))
	for ; time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if pid := s.pid(); pid != 0 && pid != than {
			return pid
		}
	}
	t.Fatal("it was not started again")
	return 0
}

// TestClasses tells processes by what they say they run, and leaves containers alone.
func TestClasses(t *testing.T) {
	needRoot(t)
	s, _ := onStage(t)
	s.daemon, s.registry = &service{}, &service{}
	for name, c := range map[string]struct {
		argv  []string
		apart bool // in a process namespace of its own
		want  class
	}{
		"runtime that is a copy of itself":       {[]string{"/usr/bin/crun", "1000"}, false, runtime},
		"container that is not yet what it runs": {[]string{"/usr/bin/crun", "1000"}, true, other},
		"monitor":                                {[]string{"berth-monitor", "1000"}, false, monitor},
		"monitor of CRI-O":                       {[]string{"/opt/bin/conmon", "1000"}, false, monitor},
		"unpacker of CRI-O":                      {[]string{"storage-applyLayer", "1000"}, false, unpacker},
		"plugin":                                 {[]string{"/opt/cni/bin/bridge", "1000"}, false, plugin},
		"somebody":                               {[]string{"sleep", "1000"}, false, other},
	} {
		cmd := &exec.Cmd{Path: "/bin/sleep", Args: c.argv, SysProcAttr: &syscall.SysProcAttr{}}
		if c.apart {
			cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWPID
		}
		must(t, cmd.Start())
		p := processOf(cmd.Process.Pid)
		for len(p.argv) == 0 { // it has no arguments for a moment of its start
			p = processOf(cmd.Process.Pid)
		}
		got := s.classOf(p)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if got != c.want {
			t.Errorf("%s is %q, wanted %q", name, got, c.want)
		}
	}
	if got := s.classOf(process{os.Getpid(), []string{"runc", "init"}}); got != other {
		t.Errorf("runc init is %q", got)
	}
}

// TestFreezerThaws freezes a disk by a client that is killed, and wants the disk to go on.
func TestFreezerThaws(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	volume.Mounted(t, dir, volume.Ext4, 16)
	socket, end, err := Freezer()
	must(t, err)
	cmd := self(t, "freeze "+socket+" "+dir)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	_, err = out.Read(make([]byte, 1))
	must(t, err)
	written := make(chan error, 1)
	go func() { written <- os.WriteFile(dir+"/file", []byte("x"), 0o600) }()
	select {
	case err := <-written:
		t.Errorf("the disk does not hang: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	select {
	case err := <-written:
		must(t, err)
	case <-time.After(timeouts.For(30 * time.Second)):
		t.Fatal("the disk hangs on")
	}
	thaw, err := askFreezer(socket, dir)
	must(t, err)
	must(t, thaw())
	must(t, os.WriteFile(dir+"/file", []byte("y"), 0o600))
	must(t, end())
}

func freezeAndWait(args string) int {
	socket, dir, _ := strings.Cut(args, " ")
	if _, err := askFreezer(socket, dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("frozen")
	time.Sleep(time.Hour)
	return 0
}

// TestPlantedIsFound plants one of everything that pods have on a machine, and wants each to be seen.
func TestPlantedIsFound(t *testing.T) {
	needRoot(t)
	out, err := self(t, "plant").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// plantAndLook runs isolated.
func plantAndLook() (err error) {
	dir, err := os.MkdirTemp("", "bt-chaos-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Unmount(dir+"/mnt", unix.MNT_DETACH), os.RemoveAll(dir)) }()
	defer func() { _ = CleanUp(dir) }()
	s := newStage(Options{Dir: dir, Peer: Berth})
	s.daemon, s.registry = &service{}, &service{}
	before, err := look(s)
	if err != nil {
		return err
	}
	pod := strings.Repeat("ab", 32)
	s.history.made(pod, pod)
	sleep := exec.Command("sleep", "1000")
	var errs []error
	for _, path := range []string{s.leases() + "/chaos", "/run/netns", "/run/ipcns", "/var/lib/x/" + pod, dir + "/mnt"} {
		errs = append(errs, os.MkdirAll(path, 0o755))
	}
	groups, _ := filepath.Glob(cgroupRoot + "/*/cgroup.procs")
	if _, err := os.Stat(cgroupRoot + "/cgroup.procs"); err == nil {
		groups = []string{cgroupRoot + "/cgroup.procs"}
	}
	errs = append(errs,
		os.WriteFile(s.leases()+"/chaos/10.89.0.7", nil, 0o600),
		os.WriteFile("/run/netns/cni-1", nil, 0o600),
		os.WriteFile("/run/ipcns/1", nil, 0o600),
		unix.Mount("tmpfs", dir+"/mnt", "tmpfs", 0, ""),
		exec.Command("ip", "link", "add", "veth1", "type", "veth", "peer", "veth2").Run(),
		exec.Command("iptables", "-w", "-t", "nat", "-N", "CNI-0123456789abcdef01234567").Run(),
		exec.Command("iptables", "-w", "-t", "nat", "-N", "KUBE-HP-ABCDEFGHIJKLM234").Run(),
		os.MkdirAll(filepath.Dir(groups[len(groups)-1])+s.parent+"/podx/"+pod, 0o755),
		os.MkdirAll(filepath.Dir(groups[len(groups)-1])+"/"+s.own+"/ops/x-1", 0o755),
		sleep.Start(),
	)
	if err := errors.Join(errs...); err != nil {
		return err
	}
	after, err := look(s)
	if err != nil {
		return err
	}
	for _, want := range []string{
		"file " + s.leases() + "/chaos/10.89.0.7", "file /run/netns/cni-1", "file /run/ipcns/1",
		"file /var/lib/x/" + pod, "mount " + dir + "/mnt",
		"link veth1", "rules of iptables-save, chain CNI-0123456789abcdef01234567", "podx/" + pod,
		"KUBE-HP-ABCDEFGHIJKLM234", "/ops/x-1", `"sleep" "1000"`,
	} {
		found := false
		for name := range after {
			found = found || !before[name] && strings.Contains(name, want)
		}
		if !found {
			errs = append(errs, fmt.Errorf("not seen: %s", want))
		}
	}
	return errors.Join(errs...)
}

// onMachine names the OCI runtime, the number of strikes and the seed of a run that has the machine to itself.
const onMachine = "BERTH_TEST_CHAOS"

// TestMachine strikes on this machine itself, which has to be one that is thrown away: its clock jumps.
func TestMachine(t *testing.T) {
	how := os.Getenv(onMachine)
	if how == "" {
		t.Skip("it takes a machine of its own, such as `make test-vm-all` makes: " + onMachine + " says nothing")
	}
	berth, err := node.Binaries(false)
	must(t, err)
	o := Options{
		Peer: Berth, Mix: "clock", Longest: 20 * time.Second, Clients: 6, Berth: berth, Machine: true, Out: os.Stdout,
	}
	_, err = fmt.Sscanf(how, "%s %d %d", &o.Runtime, &o.Strikes, &o.Seed)
	must(t, err)
	o.Dir, err = os.MkdirTemp("/var/tmp", "cb-")
	must(t, err)
	r, err := Run(o)
	must(t, err)
	t.Log("\n" + r.Table())
	if r.Failed() {
		t.Error("something was lost, or nothing was struck")
	}
	must(t, CleanUp(o.Dir))
	must(t, os.RemoveAll(o.Dir))
}
