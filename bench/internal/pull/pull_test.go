package pull

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/bench/internal/link"
	"berth/bench/internal/peer"
	"berth/bench/internal/report"
	"berth/test/fixture"
	"berth/test/isolate"
	"berth/test/node"
)

// guest makes the test binary a program that measures isolated; its value is the folder of Berth's programs.
const guest = "PULL_TEST_GUEST"

func TestMain(m *testing.M) {
	if os.Getenv(guest) == "" {
		os.Exit(m.Run())
	}
	err := isolate.Run(visit, CleanUp)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// TestBerthIsMeasured runs the benchmark with tiny images and Berth alone, for containerd is not there in a test.
func TestBerthIsMeasured(t *testing.T) {
	berth, err := node.Binaries(false)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), guest+"="+berth)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

var tiny = Sizes{Six: 6 << 18, New: 1 << 18, Large: 1 << 20, Forty: 40 << 12}

func visit(dir string) (err error) {
	cases, err := Choose([]string{"six-zstd", "ext4", "link-20", "ten"})
	if err != nil {
		return err
	}
	cases[2].Link = &link.Shape{Rate: 1e9, Delay: time.Millisecond}
	if err := errors.Join(unix.Mount("tmpfs", dir, "tmpfs", 0, ""), os.Setenv("TMPDIR", dir)); err != nil {
		return err
	}
	registry, err := fixture.StartRegistry(fixture.RegistryOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, registry.Close()) }()
	r, err := report.New()
	if err != nil {
		return err
	}
	if r.Notes, err = Publish(registry, dir, cases, tiny); err != nil {
		return err
	}
	s := Suite{
		Setup: setup(dir), Names: []string{"berth"}, Registry: registry.Addr, Report: r, Progress: io.Discard, Rounds: 2,
	}
	if err := peer.WriteHosts(s.Setup.Images.Certs, registry.Addr); err != nil {
		return err
	}
	if err := s.Run(context.Background(), cases[:3]); err != nil {
		return err
	}
	s.Names, s.Rounds = append(s.Names, peer.Before), 1
	if err := s.Run(context.Background(), cases[3:]); err != nil {
		return err
	}
	return errors.Join(judge(r), empty(dir, s.Setup.Images.Certs))
}

func setup(dir string) peer.Setup {
	runc, _ := exec.LookPath("runc")
	plugins := "/usr/lib/cni"
	if _, err := os.Stat(filepath.Join(plugins, "bridge")); err != nil {
		plugins = "/opt/cni/bin"
	}
	return peer.Setup{
		Programs: filepath.Dir(runc), Plugins: plugins, Berth: os.Getenv(guest), Before: os.Getenv(guest), Dir: dir,
		Images: peer.Images{Certs: filepath.Join(dir, "certs.d")}, CgroupParent: CgroupParent(dir), Idle: Idle,
	}
}

// judge looks whether what was measured can be true of images of these sizes.
func judge(r *report.Report) error {
	const mib = 1 << 20
	found := map[string]float64{}
	for _, m := range r.Metrics {
		if s := m.Values["berth"]; s != nil {
			found[m.Section+"/"+m.Name] = s.Samples[0]
		}
	}
	six, disk, slow, ten := "Six layers, zstd/", "Six layers, gzip, on ext4/", Cases[7].Title+"/", Cases[9].Title+"/"
	least := map[string]float64{
		six + rowTime: 0.1, six + rowPeak: 5, six + rowWritten: float64(tiny.Six) / mib, six + "received": 0.1,
		six + "store grows by": float64(tiny.Six) / mib, six + "again: pull": 0.1,
		six + "second image: " + rowWritten: float64(tiny.New) / mib,
		disk + "written to the disk":        float64(tiny.Six) / mib,
		slow + rowTime:                      4, // four times the delay, at the least
		slow + "received":                   0.01,
		ten + rowStart:                      1, ten + rowBoth: 2, ten + rowTogether: 5,
	}
	var errs []error
	for row, value := range least {
		if found[row] < value {
			errs = append(errs, fmt.Errorf("%s is %v, which is less than %v", row, found[row], value))
		}
	}
	for _, m := range r.Metrics {
		if m.Section == Cases[9].Title && m.Values[peer.Before] == nil {
			errs = append(errs, fmt.Errorf("%s/%s is not there for the other build", m.Section, m.Name))
		}
	}
	if again := found[six+"again: "+rowWritten]; again >= found[six+rowWritten] {
		errs = append(errs, fmt.Errorf("an image that is there writes %v MiB", again))
	}
	var table bytes.Buffer
	if err := r.WriteTable(&table); err != nil || !strings.Contains(table.String(), "six: 6 layers") {
		errs = append(errs, fmt.Errorf("the table does not say what was pulled: %w: %s", err, table.String()))
	}
	return errors.Join(errs...)
}

// empty looks whether the runtimes' stores went.
func empty(dir, certs string) error {
	left, err := os.ReadDir(dir)
	for _, e := range left {
		if path := filepath.Join(dir, e.Name()); path != certs && !strings.HasPrefix(e.Name(), "bt-registry-") {
			err = errors.Join(err, fmt.Errorf("%s is left", path))
		}
	}
	return err
}

func TestAWrongCaseNamesTheRightOnes(t *testing.T) {
	_, err := Choose([]string{"six-gzip", "seven"})
	if err == nil || !strings.Contains(err.Error(), "link-20") {
		t.Errorf("the error is %v", err)
	}
}
