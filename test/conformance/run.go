package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/conformance/ginkgo"
	"berth/test/fixture"
	"berth/test/node"
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
	node     *node.Node
}

// Run runs the suite in the namespaces that Ground has prepared, and says what came of it. All that it started has
// ended when it returns.
func Run(ctx context.Context, dir string, o Options) (outcome Outcome, err error) {
	r := &run{Options: o, dir: dir}
	if err := errors.Join(os.RemoveAll(o.Results), os.MkdirAll(o.Results, 0o755)); err != nil {
		return outcome, err
	}
	if err := os.Setenv("BERTH_KEEP_LOGS", o.Results); err != nil {
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
	path, err := exec.LookPath(r.Runtime)
	if err != nil {
		return err
	}
	r.node, err = node.Open(node.Options{
		Runtime: r.Runtime, Reach: []string{r.registry.Addr},
		Setup: []func() error{func() error { return furnish(r.dir, r.Runtime) }},
		// The handler that specs of runtime classes name.
		Tables: fmt.Sprintf("[runtimes.test-handler]\npath = %q\n", path),
	})
	if err != nil {
		return err
	}
	for _, host := range hosts {
		if err := r.registry.StandIn(host, r.node.Certs); err != nil {
			return err
		}
	}
	r.say("pulling %d images", len(images))
	for _, image := range images {
		spec := &runtimeapi.ImageSpec{Image: hosts[0] + "/" + image}
		if strings.HasPrefix(image, privateRepo) {
			spec.Image = hosts[1] + "/" + image
		}
		if _, err := r.node.Images.PullImage(ctx, spec, nil, nil); err != nil {
			return err
		}
	}
	return r.node.Space.Do(func() error { return r.moveDaemon() })
}

// moveDaemon moves the daemon to the cgroup that the suite names to the kubelet as the runtime's, where there is no
// systemd.
func (r *run) moveDaemon() error {
	hierarchies, err := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	for _, procs := range hierarchies {
		top := filepath.Dir(procs)
		pid := []byte(strconv.Itoa(r.node.Pid()))
		err = errors.Join(err, makeGroup(top, "docker-daemon"))
		err = errors.Join(err, os.WriteFile(filepath.Join(top, "docker-daemon/cgroup.procs"), pid, 0))
	}
	return err
}

func (r *run) close() error {
	var errs []error
	if r.node != nil {
		errs = append(errs, r.node.RemoveAll(), r.node.Space.Do(leaveKubelet), r.node.Close())
	}
	if r.registry != nil {
		errs = append(errs, r.registry.Close())
	}
	return errors.Join(errs...)
}

func (r *run) all(ctx context.Context) (Outcome, error) {
	known, err := Known()
	if err != nil {
		return Outcome{}, err
	}
	expected := Expectation{Known: known, Runtime: r.Runtime, Whole: !r.Smoke && r.Focus == "" && r.Phase == ""}
	phases := slices.Clone(whole)
	if r.Smoke {
		phases = smoke(expected.ofRuntime())
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
	err = r.await(ctx, cmd)
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

// await runs a command and then ends what it has left: the kubelet, when a spec has started it again.
func (r *run) await(ctx context.Context, cmd *exec.Cmd) error {
	if err := r.node.Space.Start(cmd); err != nil {
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
	pidFile := filepath.Join(results, "berth.pid")
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	// Ginkgo works where the suite's program is.
	suite := filepath.Join(results, suiteProgram)
	err = errors.Join(
		os.MkdirAll(programs, 0o755), os.MkdirAll(results, 0o755),
		link(self, filepath.Join(programs, "sudo")), link(self, filepath.Join(programs, "systemctl")),
		link(filepath.Join(ProgramsCache(), suiteProgram), suite),
		os.WriteFile(settings, []byte(kubeletSettings), 0o644),
		os.WriteFile(system, []byte("os: Linux\nkernelSpec:\n  versions: [\".*\"]\n"), 0o644),
		os.WriteFile(pidFile, []byte(strconv.Itoa(r.node.Pid())+"\n"), 0o644),
	)
	args := []string{"-nodes=" + strconv.Itoa(p.processes), "--timeout=" + p.limit.String(), "--no-color", "-v",
		"--json-report=" + filepath.Join(results, "report.json")}
	args = append(append(args, p.selection()...), suite, "--",
		"--container-runtime-endpoint=unix://"+r.node.Socket,
		"--container-runtime-process-name=berth", "--container-runtime-pid-file="+pidFile,
		"--prepull-images=false", "--node-name="+nodeName, "--k8s-bin-dir="+ProgramsCache(),
		"--system-spec-file="+system, "--kubelet-config-file="+settings, "--report-dir="+results)
	if p.gates != "" {
		args = append(args, "--feature-gates="+p.gates)
	}
	return args, err
}

func link(from, to string) error {
	if err := os.Remove(to); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.Symlink(from, to)
}

// kubeletSettings are what the suite takes as a kubelet's, with what this machine has otherwise: cgroup v1, a disk
// that others fill as well, and images that are pulled beside one another.
const kubeletSettings = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
cgroupRoot: /
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
podCIDR: 10.100.0.0/24
volumeStatsAggPeriod: 10s
fileCheckFrequency: 10s
evictionPressureTransitionPeriod: 30s
evictionHard: {memory.available: 250Mi, nodefs.available: 2%, nodefs.inodesFree: 2%}
evictionMinimumReclaim: {nodefs.available: 1%, nodefs.inodesFree: 1%}
serializeImagePulls: false
registryPullQPS: 0
containerLogMaxSize: 10Mi
`

func (r *run) say(format string, args ...any) {
	_, _ = fmt.Fprintf(r.Log, "conformance: "+r.Runtime+": "+format+"\n", args...)
}
