// Package installed is a node on which Berth is installed as its users install it: from the package, run by systemd,
// with its usual directories.
//
// Its tests change the machine they run on, so they run in a virtual one (make test-vm).
package installed

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/test/fixture"
	"berth/test/timeouts"
)

// inMachine is set to 1 in the environment of tests that have a machine of their own.
const inMachine = "BERTH_TEST_VM"

// Env is what a test in a machine of its own finds in its environment.
const Env = inMachine + "=1"

// Unit is the service that the package brings.
const Unit = "berth.service"

// InMachine says whether this test has a machine of its own.
func InMachine() bool { return os.Getenv(inMachine) != "" }

// Main runs the tests of a package in a machine of their own, and elsewhere none. It returns the exit code for os.Exit.
func Main(m *testing.M) int {
	if !InMachine() {
		fmt.Println("these tests change the machine they run on: make test-vm runs them in one of their own")
		return 0
	}
	return m.Run()
}

// most is how long anything here may take, on a quick machine.
const most = 30 * time.Second

// Run runs a program and returns what it printed. The test ends when the program fails.
func Run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := Try(name, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s\n%s", name, strings.Join(args, " "), err, out, Journal())
	}
	return out
}

// Try runs a program that may fail.
func Try(name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "SYSTEMD_PAGER=cat")
	cmd.WaitDelay = timeouts.For(most)
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// Journal is the last that the service said.
func Journal() string {
	out, _ := Try("journalctl", "-b", "-u", Unit, "-n", "60", "--no-pager", "-o", "cat")
	return "the journal ends with:\n" + out
}

// Eventually waits for something that needs a moment.
func Eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(timeouts.For(most)); !f(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s\n%s", what, Journal())
		}
	}
}

// Deb is the package, which lies beside the programs.
func Deb(t *testing.T) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(os.Getenv("BERTH_BIN"), "berth_*.deb"))
	if err != nil || len(found) != 1 {
		t.Fatalf("%d packages in %s, %v: make deb makes one", len(found), os.Getenv("BERTH_BIN"), err)
	}
	return found[0]
}

// Leases is where host-local keeps the addresses of the network that Network makes.
const Leases = "/var/lib/cni/networks/bt"

// Network gives the node a network for pods.
func Network(t *testing.T) {
	t.Helper()
	const network = `{"cniVersion":"1.0.0","name":"bt","plugins":[{"type":"bridge","bridge":"bt0","isGateway":true,"ipMasq":true,
 "ipam":{"type":"host-local","ranges":[[{"subnet":"10.90.0.0/16"}]],"routes":[{"dst":"0.0.0.0/0"}]}}]}`
	if err := os.MkdirAll("/etc/cni/net.d", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("/etc/cni/net.d/10-bt.conflist", []byte(network), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Image imports an image of busybox under a name.
func Image(t *testing.T, name string) {
	t.Helper()
	img, err := fixture.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(t.TempDir(), "image.tar")
	if err := fixture.WriteOCI(archive, name, img); err != nil {
		t.Fatal(err)
	}
	Run(t, "berth", "image", "import", archive)
}

// Container is what `berth ps` shows of one, as far as tests look at it.
type Container struct {
	ID       string
	Metadata struct{ Name string }
	State    string
}

// The states of containers that tests look for.
const (
	Exited  = "CONTAINER_EXITED"
	Running = "CONTAINER_RUNNING"
)

// Containers are all that `berth ps` shows.
func Containers(t *testing.T) []Container {
	t.Helper()
	var list struct{ Containers []Container }
	out := Run(t, "berth", "ps", "-a", "-o", "json")
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return list.Containers
}

// Find is the container of that name.
func Find(t *testing.T, name string) Container {
	t.Helper()
	for _, c := range Containers(t) {
		if c.Metadata.Name == name {
			return c
		}
	}
	t.Fatalf("no container %s", name)
	return Container{}
}

// WantEnd checks how `berth inspect` says that a container has ended.
func WantEnd(t *testing.T, name string, code int, reason string) {
	t.Helper()
	var got struct {
		Status struct {
			State, Reason string
			ExitCode      int
		}
	}
	text := Run(t, "berth", "inspect", name)
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if st := got.Status; st.State != Exited || st.ExitCode != code || st.Reason != reason {
		t.Errorf("%s is reported as %+v, wanted code %d, reason %s", name, st, code, reason)
	}
}

// WantNothingRuns checks that no pod runs on the node, and that nothing is left of what pods run on.
func WantNothingRuns(t *testing.T) {
	t.Helper()
	Eventually(t, "no monitor, network namespace and mount of a pod is there", func() bool {
		monitors, _ := Try("pgrep", "berth-monitor")
		pins, _ := filepath.Glob("/run/netns/berth-*")
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		return monitors == "" && len(pins) == 0 && err == nil && !strings.Contains(string(mounts), " /run/berth/pods/")
	})
}
