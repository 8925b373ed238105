package conformance

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"berth/test/fixture"
	"berth/test/node"
)

// Version is the Kubernetes whose tests these are. hack/conformance/go.mod has it too.
const Version = "v1.36.3"

const kubernetes = "k8s.io/kubernetes/"

// program is one that the suite takes, and where in the module it is.
type program struct {
	name, pkg string
	image     bool // it runs in images, which have no libraries; the others are built as Kubernetes builds them
}

var programs = []program{
	{"nnp", kubernetes + "test/images/nonewprivs", true},
	{"sampledeviceplugin", kubernetes + "test/images/sample-device-plugin", true},
	{"agnhost", kubernetes + "test/images/agnhost", true},
	{"ginkgo", "github.com/onsi/ginkgo/v2/ginkgo", false},
	{"kubelet", kubernetes + "cmd/kubelet", false},
	{suiteProgram, kubernetes + "test/e2e_node", false},
}

const suiteProgram = "e2e_node.test"

// ProgramsCache is where the programs are kept between runs, to be removed by whoever wants them built afresh.
func ProgramsCache() string {
	name := "kubernetes-" + Version + "-" + runtime.GOARCH
	return filepath.Join(filepath.Dir(fixture.DebianCache()), name)
}

// BuildPrograms builds the suite and what it takes, from Go modules, unless they are in the cache. It says what it
// does.
func BuildPrograms(log io.Writer) error {
	return fixture.Cached(ProgramsCache(), "Kubernetes' tests", func(work string) (string, error) {
		_, _ = fmt.Fprintf(log, "conformance: building Kubernetes %s's tests into %s, ten minutes on 2 cores\n",
			Version, ProgramsCache())
		out := filepath.Join(work, "bin")
		if err := os.Mkdir(out, 0o755); err != nil {
			return "", err
		}
		for _, p := range programs {
			if err := p.build(log, out); err != nil {
				return "", err
			}
		}
		return out, nil
	})
}

// The variables of a run in a virtual machine, where there is no working tree.
const (
	AppletsVariable = "BERTH_TEST_APPLETS"             // names the program of AppletsProgram
	ResultsVariable = "BERTH_TEST_CONFORMANCE_RESULTS" // names the folder for reports and logs
)

// AppletsProgram is where Prepare puts that of test/fixture/applets, or where it has been put in a virtual machine.
func AppletsProgram() string {
	if built := os.Getenv(AppletsVariable); built != "" {
		return built
	}
	return filepath.Join(fixture.Repo(), "bin/test/applets")
}

// Prepare builds what a run takes of this working tree and of Debian. In the run there is no Go and no network.
func Prepare(log io.Writer) error {
	bin, err := node.Binaries(false)
	if err != nil {
		return err
	}
	return errors.Join(
		os.Setenv("BERTH_BIN", bin),
		os.MkdirAll(filepath.Dir(AppletsProgram()), 0o755),
		fixture.Build("applets", AppletsProgram()),
		fixture.BuildDebian(log),
	)
}

func (p program) build(log io.Writer, out string) error {
	_, _ = fmt.Fprintf(log, "conformance: building %s\n", p.name)
	args, cgo := []string{"build"}, "CGO_ENABLED=1"
	if strings.HasSuffix(p.name, ".test") {
		args = []string{"test", "-c", "-vet=off"}
	}
	if p.image {
		args, cgo = append(args, "-trimpath"), "CGO_ENABLED=0"
	}
	stamp := "-X k8s.io/component-base/version."
	args = append(args, "-buildvcs=false", "-o", filepath.Join(out, p.name),
		"-ldflags=-s -w "+stamp+"gitVersion="+Version+" "+stamp+"gitMajor=1 "+stamp+"gitMinor=36", p.pkg)
	cmd := exec.Command("go", args...)
	cmd.Dir = filepath.Join(fixture.Repo(), "hack/conformance")
	cmd.Env = append(os.Environ(), cgo, "GOFLAGS=")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", p.name, err, text)
	}
	return nil
}
