// Package power tests a node whose power is cut while it starts pods, and that boots again: what was durable is
// reported honestly, what had completed stays completed, addresses are free again, and nothing is left of the rest.
//
// TestStart runs in the first boot of a virtual machine, which ends in the middle of it, and TestAfter in the second.
// make test-vm runs them.
package power

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/test/installed"
)

func TestMain(m *testing.M) { os.Exit(installed.Main(m)) }

const (
	image = "power.test/busybox:v1"
	// many pods are being started when the power goes, and after so many of them.
	many, after = 20, 7
)

// TestStart installs Berth, runs a pod and a job that are durable when it goes on, and starts pods until the power is
// cut.
func TestStart(t *testing.T) {
	installed.Run(t, "dpkg", "-i", installed.Deb(t))
	installed.Network(t)
	installed.Image(t, image)
	installed.Run(t, "berth", "run", "-d", "--name", "durable", image, "sleep", "100000")
	installed.Run(t, "berth", "run", "--name", "job", image, "sh", "-c", "echo done")
	installed.WantEnd(t, "job", 0, "Completed")
	time.Sleep(15 * time.Second) // the records are durable within one
	var pods sync.WaitGroup
	started := make(chan int, many)
	for i := range many {
		pods.Go(func() {
			if out, err := installed.Try("berth", "run", "-d", "--name", fmt.Sprintf("pod%d", i), image, "sleep",
				"100000"); err != nil {
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

// held are the addresses that host-local holds, with who has them.
func held(t *testing.T) map[string]string {
	t.Helper()
	found, err := filepath.Glob(installed.Leases + "/10.*")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, path := range found {
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was given back meanwhile
		}
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
	installed.Eventually(t, "the service is up", func() bool {
		state, _ := installed.Try("systemctl", "is-active", "berth")
		return state == "active"
	})
	installed.WantEnd(t, "durable", 255, "Unknown") // nobody knows how it ended, and that is said
	installed.WantEnd(t, "job", 0, "Completed")     // it had, before the power went
	all := installed.Containers(t)
	t.Logf("%d containers outlived the power: the records of the others were not durable yet", len(all))
	for _, c := range all {
		if c.State == installed.Running {
			t.Errorf("%s is said to run", c.Metadata.Name)
		}
	}
	known := records(t)
	installed.Eventually(t, "the addresses of all pods that are known are free, and those that are nobody's", func() bool {
		for _, who := range held(t) {
			if known[who] || who == "" {
				return false
			}
		}
		return true
	})
	t.Logf("held by pods whose records the power took: %v", held(t))
	if out, err := installed.Try("berth", "check"); err != nil {
		t.Errorf("berth check: %v\n%s", err, out)
	}
	installed.WantNothingRuns(t)
	if got := installed.Run(t, "berth", "run", "--rm", "--name", "durable2", image, "echo", "new"); got != "new" {
		t.Errorf("a new pod printed %q", got)
	}
	for _, c := range all {
		installed.Run(t, "berth", "rm", "-f", c.ID)
	}
	if left := installed.Containers(t); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	installed.Run(t, "dpkg", "--purge", "berth")
	if _, err := os.Stat("/var/lib/berth"); !os.IsNotExist(err) {
		t.Errorf("/var/lib/berth is left: %v", err)
	}
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
