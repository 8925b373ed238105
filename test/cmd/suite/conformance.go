package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"berth/test/conformance"
	"berth/test/node"
)

// conform runs the node tests of Kubernetes with each runtime, or with that of BERTH_TEST_RUNTIME. A spec that does
// not end as it is known to is a failure.
func conform(t *tally, args ...string) {
	failed := t.failed
	if t.command("go", "build", "-o", "bin/conformance", "./test/cmd/conformance"); t.failed > failed {
		return
	}
	for _, runtime := range conformed() {
		if err := conformWith(t, runtime, args); err != nil {
			t.fail("conformance with "+runtime, err.Error())
		}
	}
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

// conformWith counts what one run tells, while it prints it.
func conformWith(t *tally, runtime string, args []string) error {
	results, err := filepath.Abs("bin/conformance-results/" + runtime)
	if err != nil {
		return err
	}
	file := filepath.Join(results, conformance.OutcomeFile)
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	args = append([]string{"-q", "-runtime=" + runtime, "-results=" + results}, args...)
	cmd := exec.Command("bin/conformance", args...)
	cmd.Stdout, cmd.Stderr = t.out, t.out
	ended := cmd.Run()
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("it came to no outcome: %w", errors.Join(ended, err))
	}
	var o conformance.Outcome
	if err := json.Unmarshal(text, &o); err != nil {
		return err
	}
	t.passed += len(o.Passed) + len(o.Known)
	for _, d := range o.Differences {
		t.fail(runtime+": "+d.Spec, d.What)
	}
	if ended != nil && len(o.Differences) == 0 {
		return ended
	}
	return nil
}
