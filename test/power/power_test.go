// Package power tests a node whose power is cut while it starts pods, and that boots again: what was durable is reported
// honestly, what had completed stays completed, addresses are free again, and nothing is left of the rest.
//
// TestStart runs in the first boot of a virtual machine, which ends in the middle of it, and TestAfter in the second. make
// test-vm runs them.
package power

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/test/fixture"
)

func TestMain(m *testing.M) {
	if os.Getenv("BERTH_TEST_VM") == "" {
		fmt.Println("power: the power of this machine is not cut: make test-vm does that to one of its own")
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const (
	image  = "power.test/busybox:v1"
	leases = "/var/lib/cni/networks/bt"
	// many pods are being started when the power goes, and after so many of them.
	many, after = 20, 7
	// patience is for a machine whose processor is emulated.
	patience = 5 * time.Minute
)

func try(name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.WaitDelay = patience
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := try(name, args...)
	if err != nil {
		journal, _ := try("journalctl", "-b", "-u", "berth", "-n", "60", "--no-pager", "-o", "cat")
		t.Fatalf("%s %s: %v\n%s\nthe journal ends with:\n%s", name, strings.Join(args, " "), err, out, journal)
	}
	return out
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !f(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s; leases: %v", what, held(t))
		}
	}
}

// TestStart installs Berth, runs a pod and a job that are durable when it goes on, and starts pods until the power is cut.
func TestStart(t *testing.T) {
	debs, err := filepath.Glob(filepath.Join(os.Getenv("BERTH_BIN"), "berth_*.deb"))
	if err != nil || len(debs) != 1 {
		t.Fatalf("packages %v, %v: make deb makes one", debs, err)
	}
	run(t, "dpkg", "-i", debs[0])
	network(t)
	importImage(t)
	run(t, "berth", "run", "-d", "--name", "durable", image, "sleep", "100000")
	run(t, "berth", "run", "--name", "job", image, "sh", "-c", "echo done")
	if ps := find(t, "job"); ps.State != exited {
		t.Fatalf("the job: %+v", ps)
	}
	time.Sleep(5 * time.Second) // the records are durable within one
	var pods sync.WaitGroup
	started := make(chan int, many)
	for i := range many {
		pods.Go(func() {
			if out, err := try("berth", "run", "-d", "--name", fmt.Sprintf("pod%d", i), image, "sleep", "100000"); err != nil {
				t.Errorf("pod %d: %v %s", i, err, out)
				return
			}
			started <- i
		})
	}
	for range after {
		<-started
	}
	fmt.Println("power: cut it now")
	pods.Wait()
	time.Sleep(time.Hour)
}

func network(t *testing.T) {
	t.Helper()
	const text = `{"cniVersion":"1.0.0","name":"bt","plugins":[{"type":"bridge","bridge":"bt0","isGateway":true,"ipMasq":true,
 "ipam":{"type":"host-local","ranges":[[{"subnet":"10.88.0.0/16"}]],"routes":[{"dst":"0.0.0.0/0"}]}}]}`
	if err := os.MkdirAll("/etc/cni/net.d", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("/etc/cni/net.d/10-bt.conflist", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func importImage(t *testing.T) {
	t.Helper()
	img, err := fixture.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(t.TempDir(), "image.tar")
	if err := fixture.WriteOCI(archive, image, img); err != nil {
		t.Fatal(err)
	}
	run(t, "berth", "image", "import", archive)
}

// container is what `berth ps` shows of one, as far as it is looked at here.
type container struct {
	ID       string
	Metadata struct{ Name string }
	State    string
}

const exited = "CONTAINER_EXITED"

func containers(t *testing.T) []container {
	t.Helper()
	var list struct{ Containers []container }
	out := run(t, "berth", "ps", "-a", "-o", "json")
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return list.Containers
}

func find(t *testing.T, name string) container {
	t.Helper()
	for _, c := range containers(t) {
		if c.Metadata.Name == name {
			return c
		}
	}
	t.Fatalf("no container %s", name)
	return container{}
}

// held are the addresses that host-local holds, with who has them.
func held(t *testing.T) map[string]string {
	t.Helper()
	found, err := filepath.Glob(leases + "/10.*")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, path := range found {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		who, _, _ := strings.Cut(string(text), "\n")
		all[filepath.Base(path)] = strings.TrimSpace(who)
	}
	return all
}

// TestAfter is the second boot. The service was enabled, so it runs.
func TestAfter(t *testing.T) {
	eventually(t, "the service is up", func() bool {
		state, _ := try("systemctl", "is-active", "berth")
		return state == "active"
	})
	durable := find(t, "durable")
	if durable.State != exited {
		t.Errorf("a container of the boot before: %+v", durable)
	}
	if text := run(t, "berth", "inspect", "durable"); !ended(text, 255, "Unknown") {
		t.Errorf("how the durable container ended is not known, but is reported as\n%s", text)
	}
	if text := run(t, "berth", "inspect", "job"); !ended(text, 0, "Completed") {
		t.Errorf("the job had completed before the power went, and now is\n%s", text)
	}
	all := containers(t)
	t.Logf("%d containers outlived the power: the records of the others were not durable yet", len(all))
	for _, c := range all {
		if c.State == "CONTAINER_RUNNING" {
			t.Errorf("%s is said to run", c.Metadata.Name)
		}
	}
	known := records(t)
	eventually(t, "the addresses of all pods that are known are free", func() bool {
		for _, who := range held(t) {
			if known[who] {
				return false
			}
		}
		return true
	})
	t.Logf("held by pods whose records the power took: %v", held(t))
	if out, err := try("berth", "check"); err != nil {
		t.Errorf("berth check: %v\n%s", err, out)
	}
	wantNothingLeft(t)
	if got := run(t, "berth", "run", "--rm", "--name", "durable2", image, "echo", "new"); got != "new" {
		t.Errorf("a new pod printed %q", got)
	}
	for _, c := range all {
		run(t, "berth", "rm", "-f", c.ID)
	}
	if left := containers(t); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	run(t, "dpkg", "--purge", "berth")
	if _, err := os.Stat("/var/lib/berth"); !os.IsNotExist(err) {
		t.Errorf("/var/lib/berth is left: %v", err)
	}
}

// ended says whether what `berth inspect` prints is of a container that ended so.
func ended(inspect string, code int, reason string) bool {
	has := func(key, value string) bool {
		return regexp.MustCompile(`"` + key + `":\s*` + regexp.QuoteMeta(value) + `[,\s]`).MatchString(inspect)
	}
	return has("exitCode", strconv.Itoa(code)) && has("reason", strconv.Quote(reason))
}

// records are the ids of the pods that have a record.
func records(t *testing.T) map[string]bool {
	t.Helper()
	found, err := filepath.Glob("/var/lib/berth/pods/*/record")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	for _, path := range found {
		all[filepath.Base(filepath.Dir(path))] = true
	}
	if len(all) == 0 {
		t.Fatal("no pod outlived the power, not even those that were durable")
	}
	return all
}

// wantNothingLeft looks for what pods leave on a node that they do not run on.
func wantNothingLeft(t *testing.T) {
	t.Helper()
	eventually(t, "no monitor and no network namespace is there", func() bool {
		monitors, _ := try("pgrep", "berth-monitor")
		pins, _ := filepath.Glob("/run/netns/berth-*")
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		return monitors == "" && len(pins) == 0 && err == nil && !strings.Contains(string(mounts), " /run/berth/pods/")
	})
}
