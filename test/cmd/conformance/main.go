// Command conformance runs the node tests of Kubernetes against a daemon built from this working tree.
//
//	go run ./test/cmd/conformance [-runtime crun] [-smoke] [-phase NAME] [-focus REGEXP] [-results DIR] [-record FILE]
//	go run ./test/cmd/conformance -build
//
// With -build it builds the programs of Kubernetes that it takes, unless that is done, and no more. It prints each
// spec that did not end as test/conformance/known.txt says, and how many there were; the exit code is 0 when there
// was none.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"berth/test/conformance"
	"berth/test/fixture"
	"berth/test/isolate"
	"berth/test/node"
)

var (
	runtimeName = flag.String("runtime", node.Runc, "the OCI runtime: runc or crun")
	smoke       = flag.Bool("smoke", false, "the smoke set: some minutes")
	focus       = flag.String("focus", "", "only the specs whose names match this expression")
	phase       = flag.String("phase", "", "only this phase of a whole run: conformance, serial, stats or features")
	cadvisor    = flag.Bool("cadvisor", false, "only whether a kubelet's cAdvisor knows containers by name")
	build       = flag.Bool("build", false, "build what is taken of Kubernetes, and end")
	results     = flag.String("results", "", "where reports and logs go; bin/conformance-results/RUNTIME when empty")
	record      = flag.String("record", "", "put the outcome into this page, as the newest row of its table")
	quiet       = flag.Bool("q", false, "do not print what differs: it is among the results, in "+conformance.OutcomeFile)
)

// marker is the file by which a folder of a run that was killed is known.
const marker = "conformance"

func main() {
	if conformance.StandIn(os.Args) {
		return
	}
	flag.Parse()
	if err := work(); err != nil {
		if isolate.Outside() || !errors.Is(err, errDiffers) {
			fmt.Fprintln(os.Stderr, "conformance:", err)
		}
		os.Exit(1)
	}
}

var errDiffers = errors.New("specs did not end as the list says")

func work() error {
	if isolate.Outside() {
		if err := isolate.Sweep(marker, conformance.CleanUp); err != nil {
			return err
		}
		if err := conformance.BuildPrograms(os.Stdout); err != nil || *build {
			return err
		}
		if err := conformance.Prepare(os.Stderr); err != nil {
			return err
		}
	}
	return isolate.Run(inside, conformance.CleanUp, conformance.Ground)
}

func inside(dir string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	kept := *results
	if kept == "" {
		kept = filepath.Join(fixture.Repo(), "bin/conformance-results", *runtimeName)
	}
	if err := os.WriteFile(filepath.Join(dir, marker), nil, 0o644); err != nil {
		return err
	}
	if *cadvisor {
		err := conformance.CAdvisor(ctx, dir, conformance.Options{Runtime: *runtimeName, Results: kept, Log: os.Stdout})
		if err == nil {
			fmt.Printf("%s: the kubelet's cAdvisor knows the names of containers\n", *runtimeName)
		}
		return err
	}
	began := time.Now()
	outcome, err := conformance.Run(ctx, dir, conformance.Options{
		Runtime: *runtimeName, Smoke: *smoke, Focus: *focus, Phase: *phase, Results: kept, Log: os.Stdout,
	})
	took := time.Since(began)
	for _, d := range outcome.Differences {
		if *quiet {
			break
		}
		fmt.Printf("FAIL %s\n     %s\n", d.Spec, strings.ReplaceAll(strings.TrimSpace(d.What), "\n", "\n     "))
	}
	fmt.Printf("%s: %d passed, %d did not and are known, %d differ, in %s; reports and logs are in %s\n", *runtimeName,
		len(outcome.Passed), len(outcome.Known), len(outcome.Differences), took.Round(time.Second), kept)
	if err != nil {
		return err
	}
	text, err := json.Marshal(outcome)
	err = errors.Join(err, os.WriteFile(filepath.Join(kept, conformance.OutcomeFile), text, 0o644), put(outcome, took))
	if len(outcome.Differences) > 0 {
		err = errors.Join(err, errDiffers)
	}
	return err
}

func put(o conformance.Outcome, took time.Duration) error {
	if *record == "" {
		return nil
	}
	return conformance.Record(*record, *runtimeName, o, took)
}
