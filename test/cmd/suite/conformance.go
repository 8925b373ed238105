package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"berth/test/conformance"
	"berth/test/node"
)

// conform runs the node tests of Kubernetes with each runtime, or with that of BERTH_TEST_RUNTIME: one after the other,
// or beside each other, which they can since each run has namespaces of its own. A spec that does not end as it is
// known to is a failure.
func conform(t *tally, beside bool, args ...string) {
	failed := t.failed
	if t.command("go", "build", "-o", "bin/conformance", "./test/cmd/conformance"); t.failed > failed {
		return
	}
	runs := make([]conformanceRun, len(conformed()))
	var all sync.WaitGroup
	for i, runtime := range conformed() {
		all.Go(func() { runs[i] = conformWith(t.out, runtime, args) })
		if !beside {
			all.Wait()
		}
	}
	all.Wait()
	for _, r := range runs {
		t.passed += len(r.Passed) + len(r.Known)
		for _, d := range r.Differences {
			t.fail(r.runtime+": "+d.Spec, d.What)
		}
		if r.err != nil {
			t.fail("conformance with "+r.runtime, r.err.Error())
		}
	}
}

// conformanceRun is what became of the node tests with one runtime.
type conformanceRun struct {
	conformance.Outcome
	runtime string
	err     error // beside what differs
}

// conformed are the runtimes that are looked at.
func conformed() []string {
	if one := os.Getenv("BERTH_TEST_RUNTIME"); one != "" {
		return []string{one}
	}
	return []string{node.Runc, node.Crun}
}

// knowNames has the cAdvisor of a kubelet ask a daemon that answers as CRI-O does.
func knowNames(t *tally) {
	for _, runtime := range conformed() {
		results, err := filepath.Abs("bin/conformance-results/" + runtime + "-cadvisor")
		if err != nil {
			t.fail("cAdvisor", err.Error())
			return
		}
		t.command("bin/conformance", "-cadvisor", "-runtime="+runtime, "-results="+results)
	}
}

// conformWith runs the node tests with one runtime. What it tells meanwhile goes to out.
func conformWith(out io.Writer, runtime string, args []string) (r conformanceRun) {
	r.runtime = runtime
	results, err := filepath.Abs("bin/conformance-results/" + runtime)
	if err != nil {
		r.err = err
		return r
	}
	file := filepath.Join(results, conformance.OutcomeFile)
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		r.err = err
		return r
	}
	args = append([]string{"-q", "-runtime=" + runtime, "-results=" + results}, args...)
	cmd := exec.Command("bin/conformance", args...)
	cmd.Stdout, cmd.Stderr = out, out
	ended := cmd.Run()
	text, err := os.ReadFile(file)
	if err != nil {
		r.err = fmt.Errorf("it came to no outcome: %w", errors.Join(ended, err))
		return r
	}
	if r.err = json.Unmarshal(text, &r.Outcome); r.err == nil && len(r.Differences) == 0 {
		r.err = ended
	}
	return r
}
