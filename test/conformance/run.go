package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"berth/test/conformance/ginkgo"
	"berth/test/fixture"
	"berth/test/timeouts"
)

// Options are what a run may choose.
type Options struct {
	Runtime string // node.Runc or node.Crun
	Smoke   bool   // the smoke set, not everything
	Focus   string // only the specs whose names match, and nothing is wanted of the others
	Phase   string // only this phase of a whole run
	Results string // a folder for reports and logs, which is emptied
	Log     io.Writer
}

// run is one run. Its folders lie in dir.
type run struct {
	Options
	dir      string
	registry *fixture.Registry
	site     site
	about    about // of site, once it is open
}

// Run runs the suite in the namespaces that Ground has prepared, and says what came of it. All that it started has
// ended when it returns.
func Run(ctx context.Context, dir string, o Options) (outcome Outcome, err error) {
	if err := os.Setenv("BERTH_KEEP_LOGS", o.Results); err != nil {
		return outcome, err
	}
	return runOn(ctx, &namespaces{dir: dir, runtime: o.Runtime}, dir, o)
}

func runOn(ctx context.Context, s site, dir string, o Options) (outcome Outcome, err error) {
	r := &run{Options: o, dir: dir, site: s}
	if err := errors.Join(os.RemoveAll(o.Results), os.MkdirAll(o.Results, 0o755)); err != nil {
		return outcome, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.open(ctx); err != nil {
		return outcome, err
	}
	return r.all(ctx)
}

// open starts the registry and the daemon, and has it pull every image.
func (r *run) open(ctx context.Context) (err error) {
	if r.registry, err = fixture.StartRegistry(fixture.RegistryOptions{}); err != nil {
		return err
	}
	r.say("making images")
	images, err := Push(r.registry)
	if err != nil {
		return err
	}
	if err := r.site.open(r.registry); err != nil {
		return err
	}
	r.about = r.site.about()
	r.say("pulling %d images", len(images))
	for _, image := range images {
		if err := r.site.pull(ctx, pulled(image)); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) close() error {
	err := r.site.close()
	if r.registry != nil {
		err = errors.Join(err, r.registry.Close())
	}
	return err
}

func (r *run) all(ctx context.Context) (Outcome, error) {
	known, err := Known()
	if err != nil {
		return Outcome{}, err
	}
	expected := Expectation{Known: known, Runtime: r.Runtime, Site: r.about.name,
		Whole: !r.Smoke && r.Focus == "" && r.Phase == ""}
	phases := slices.Clone(whole)
	if r.Smoke {
		phases = smoke(r.about.smoke, r.about.at, expected.holding())
	}
	if r.Phase != "" {
		phases = slices.DeleteFunc(phases, func(p phase) bool { return p.name != r.Phase })
	}
	if len(phases) == 0 {
		return Outcome{}, fmt.Errorf("no phase is called %s", r.Phase)
	}
	var ran []ginkgo.Spec
	var troubles []Difference
	for _, p := range phases {
		if r.Focus != "" {
			p.focus, p.specs = r.Focus, nil
		} else {
			expected.Specs = append(expected.Specs, p.specs...)
		}
		report, err := r.phase(ctx, p)
		if err != nil {
			return Outcome{}, fmt.Errorf("%s: %w", p.name, err)
		}
		for _, s := range report.Specs {
			s.Name += p.mark()
			ran = append(ran, s)
		}
		for _, trouble := range report.Troubles {
			troubles = append(troubles, Difference{p.name, trouble})
		}
	}
	outcome := expected.Compare(ran)
	outcome.Differences = append(outcome.Differences, troubles...)
	return outcome, nil
}

// phase runs the suite once. Specs that fail are no error.
func (r *run) phase(ctx context.Context, p phase) (ginkgo.Report, error) {
	began := time.Now()
	results := filepath.Join(r.Results, p.name)
	args, err := r.prepare(p, results)
	if err != nil {
		return ginkgo.Report{}, err
	}
	out, err := os.Create(filepath.Join(results, "output.log"))
	if err != nil {
		return ginkgo.Report{}, err
	}
	defer out.Close()
	cmd := exec.Command(filepath.Join(ProgramsCache(), "ginkgo"), args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = results, out, out
	cmd.Env = append(os.Environ(), "PATH="+r.dir+"/programs:"+os.Getenv("PATH"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	stop := r.tell(p.name, out.Name())
	err = r.await(ctx, cmd)
	stop()
	report, unread := ginkgo.Read(filepath.Join(results, "report.json"))
	if ctx.Err() != nil || unread != nil {
		return report, errors.Join(ctx.Err(), err, unread, fmt.Errorf("see %s", out.Name()))
	}
	r.say("%s: took %s", p.name, time.Since(began).Round(time.Second))
	if err != nil && len(report.Specs) == 0 {
		return report, fmt.Errorf("%w: see %s", err, out.Name())
	}
	return report, nil
}

// tell says every minute how many specs have ended: who watches a machine takes one that is silent for dead. The
// function that it returns ends that.
func (r *run) tell(phase, output string) (stop func()) {
	done := make(chan struct{})
	var telling sync.WaitGroup
	telling.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(time.Minute):
			}
			if text, err := os.ReadFile(output); err == nil {
				r.say("%s: %d specs have ended", phase, bytes.Count(text, []byte("\n\u2022 ")))
			}
		}
	})
	return func() {
		close(done)
		telling.Wait()
	}
}

// await runs a command and then ends what it has left: the kubelet, when a spec has started it again.
func (r *run) await(ctx context.Context, cmd *exec.Cmd) error {
	if err := r.site.start(cmd); err != nil {
		return err
	}
	group := -cmd.Process.Pid
	var once sync.WaitGroup
	done := make(chan struct{})
	once.Go(func() {
		select {
		case <-ctx.Done():
			_ = syscall.Kill(group, syscall.SIGKILL)
		case <-done:
		}
	})
	err := cmd.Wait()
	close(done)
	once.Wait()
	k, found := findKubelet()
	return errors.Join(err, found, k.stop())
}

// prepare makes the folder of a phase, and the arguments of Ginkgo.
func (r *run) prepare(p phase, results string) ([]string, error) {
	programs := filepath.Join(r.dir, "programs")
	settings, system := filepath.Join(results, "kubelet.yaml"), filepath.Join(results, "system.yaml")
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	// Ginkgo works where the suite's program is.
	suite := filepath.Join(results, suiteProgram)
	err = errors.Join(
		os.MkdirAll(programs, 0o755), os.MkdirAll(results, 0o755),
		link(filepath.Join(ProgramsCache(), suiteProgram), suite),
		os.WriteFile(settings, fmt.Appendf(nil, kubeletSettings, r.about.driver, r.about.score), 0o644),
		os.WriteFile(system, []byte("os: Linux\nkernelSpec:\n  versions: [\".*\"]\n"), 0o644),
	)
	for _, name := range r.about.standIns {
		err = errors.Join(err, link(self, filepath.Join(programs, name)))
	}
	args := []string{"-nodes=" + strconv.Itoa(p.processes), "--timeout=" + timeouts.For(p.limit).String(),
		"--no-color", "-v", "--json-report=" + filepath.Join(results, "report.json")}
	args = append(append(args, p.selection()...), suite, "--",
		"--container-runtime-endpoint=unix://"+r.about.socket,
		"--container-runtime-process-name=berth", "--container-runtime-pid-file=", // it is found by its name
		"--prepull-images=false", "--node-name="+nodeName, "--k8s-bin-dir="+ProgramsCache(),
		"--system-spec-file="+system, "--kubelet-config-file="+settings, "--report-dir="+results)
	if p.gates != "" {
		args = append(args, "--feature-gates="+p.gates)
	}
	return append(args, r.about.flags...), err
}

func link(from, to string) error {
	if err := os.Remove(to); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.Symlink(from, to)
}

// kubeletSettings are what the suite takes as a kubelet's, with what the sites have otherwise: a cgroup driver, cgroup
// v1, an oom_score_adj, a disk that others fill as well, and images that are pulled beside one another.
const kubeletSettings = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: %s
cgroupRoot: /
failCgroupV1: false
failSwapOn: false
oomScoreAdj: %d
podCIDR: 10.100.0.0/24
volumeStatsAggPeriod: 10s
fileCheckFrequency: 10s
evictionPressureTransitionPeriod: 30s
evictionHard: {memory.available: 250Mi, nodefs.available: 2%%, nodefs.inodesFree: 2%%}
evictionMinimumReclaim: {nodefs.available: 1%%, nodefs.inodesFree: 1%%}
serializeImagePulls: false
registryPullQPS: 0
containerLogMaxSize: 10Mi
`

func (r *run) say(format string, args ...any) {
	_, _ = fmt.Fprintf(r.Log, "conformance: "+r.Runtime+": "+format+"\n", args...)
}
