package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/fixture"
	"berth/test/installed"
	"berth/test/timeouts"
)

func TestMain(m *testing.M) {
	if StandIn(os.Args) {
		return
	}
	os.Exit(m.Run())
}

// TestMachine installs the package on the machine that it runs on, and runs the smoke set of the virtual machine with
// the runtime of BERTH_TEST_RUNTIME. Each spec is a subtest.
func TestMachine(t *testing.T) {
	if !installed.InMachine() {
		t.Skip("it changes the machine: make conformance-vm runs it in one of its own")
	}
	o := Options{
		Runtime: os.Getenv("BERTH_TEST_RUNTIME"), Smoke: true, Results: os.Getenv(ResultsVariable), Log: os.Stdout,
	}
	outcome, err := runOn(context.Background(), &machine{T: t, Options: o}, t.TempDir(), o)
	if err != nil {
		t.Error(err)
	}
	for _, spec := range outcome.Passed {
		t.Run(spec, func(*testing.T) {})
	}
	for _, d := range outcome.Differences {
		t.Run(d.Spec, func(t *testing.T) { t.Error(d.What) })
	}
}

// serverStart is how long the API server and the kubelet may take each, on a quick machine, until they serve.
const serverStart = time.Minute

// machine is the site in a virtual machine: the daemon is that of the package, and systemd runs it and the kubelet.
type machine struct {
	*testing.T
	Options
	running bool
}

func (m *machine) open(registry *fixture.Registry) error {
	path, err := exec.LookPath(m.Runtime)
	if err != nil {
		return err
	}
	files := names()
	files["/etc/berth/conf.d/50-conformance.toml"] = fmt.Sprintf("[runtimes]\ndefault = %q\n", m.Runtime) + handlers(path)
	// The specs of the kubelet's summary want a runtime that may take all memory.
	files["/etc/systemd/system/"+installed.Unit+".d/50-conformance.conf"] = "[Service]\nMemoryMax=infinity\n"
	for name, text := range files {
		err = errors.Join(err, os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644))
	}
	for _, host := range hosts {
		err = errors.Join(err, registry.StandIn(host, "/etc/berth/certs.d"))
	}
	if err = errors.Join(err, unix.Sethostname([]byte(nodeName)), connect(), chatter()); err != nil {
		return err
	}
	installed.Network(m.T)
	installed.Run(m.T, "dpkg", "-i", installed.Deb(m.T))
	installed.Eventually(m.T, "the daemon serves", func() bool {
		_, err := installed.Try("berth", "ps")
		return err == nil
	})
	m.running = true
	return nil
}

func (m *machine) about() about {
	return about{
		name: VM, socket: "/run/berth/berth.sock", driver: "systemd", score: -999, smoke: smokeVMText, at: 3,
		standIns: []string{"sudo"},
		flags: []string{
			"--kubelet-flags=--runtime-cgroups=/system.slice/" + installed.Unit,
			"--server-start-timeout=" + timeouts.For(serverStart).String(),
		},
	}
}

func (m *machine) pull(_ context.Context, image string) error {
	installed.Run(m.T, "berth", "pull", image)
	return nil
}

func (m *machine) start(cmd *exec.Cmd) error { return cmd.Start() }

func (m *machine) close() error {
	if !m.running {
		return nil
	}
	installed.Run(m.T, "berth", "rmp", "-fa")
	installed.WantNothingRuns(m.T)
	journal := installed.Run(m.T, "journalctl", "-b", "-u", installed.Unit, "--no-pager", "-o", "short-precise")
	return os.WriteFile(filepath.Join(m.Results, "berth.log"), []byte(journal), 0o644)
}
