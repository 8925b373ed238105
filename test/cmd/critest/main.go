// Command critest runs the CRI validation suite (critest of kubernetes-sigs/cri-tools, built elsewhere) against a
// daemon built from this working tree, with both cores and nothing from outside.
//
//	CGO_ENABLED=0 go run ./test/cmd/critest [-vm] [-runtime crun] [-focus REGEXP] [-times 10] PATH-OF-CRITEST [flags…]
//
// Its helper ginkgo must be on the PATH. With -vm all of it happens in the virtual machine of test/vm, which has
// systemd, cgroup v2 and AppArmor.
//
// The images that the suite pulls from public registries are stand-ins, made here and served by a registry on loopback.
// The daemon and the suite run in a space of their own. The last line says how many specs passed, failed and were
// skipped.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"berth/test/conformance/ginkgo"
	"berth/test/fixture"
	"berth/test/node"
)

var (
	runtimeName = flag.String("runtime", node.Runc, "the OCI runtime: runc or crun")
	focus       = flag.String("focus", "", "only the specs whose names match this expression")
	parallel    = flag.String("parallel", "2", "how many specs run at once")
	virtual     = flag.Bool("vm", false, "run in the virtual machine")
	times       = flag.Int("times", 1, "how many times the suite runs, on one daemon")
)

func main() {
	if standIn(os.Args) {
		return
	}
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "critest: name the built suite: go test -c -o critest ./cmd/critest in "+
			"kubernetes-sigs/cri-tools")
		os.Exit(2)
	}
	work := run
	if *virtual {
		work = inMachine
	}
	if err := work(flag.Arg(0), flag.Args()[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "critest:", err)
		os.Exit(1)
	}
}

func run(suite string, more []string) (err error) {
	registry, err := fixture.StartRegistry(fixture.RegistryOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, registry.Close()) }()
	digest, err := push(registry)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "bt-critest-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	program := filepath.Join(dir, "critest")
	if err := adapt(suite, program, digest); err != nil {
		return err
	}
	nri := filepath.Join(dir, "nri.sock")
	n, err := node.Open(node.Options{Runtime: *runtimeName, Reach: []string{registry.Addr}, Tables: tables(nri)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	for _, host := range hosts {
		if err := registry.StandIn(host, n.Certs); err != nil {
			return err
		}
	}
	for range *times {
		if err := once(n, program, dir, nri, more); err != nil {
			return err
		}
	}
	return nil
}

// adapt copies the suite. It pins the digest of one image, which no stand-in has: the copy has that of ours.
func adapt(suite, program string, digest string) error {
	data, err := os.ReadFile(suite)
	if err != nil {
		return err
	}
	const name = "test-image-digest@sha256:"
	at := bytes.Index(data, []byte(name))
	if at < 0 || len(data) < at+len(name)+len(digest) {
		return fmt.Errorf("%s does not name an image by digest: is it the validation suite?", suite)
	}
	for ; at >= 0; at = next(data, name, at+len(name)) {
		if !bytes.HasPrefix(data[max(0, at-4):], []byte("win-")) {
			copy(data[at+len(name):], digest)
		}
	}
	return os.WriteFile(program, data, 0o755)
}

func next(data []byte, name string, from int) int {
	at := bytes.Index(data[from:], []byte(name))
	if at < 0 {
		return -1
	}
	return from + at
}

// once runs the suite and prints what did not pass.
func once(n *node.Node, program, dir, nri string, more []string) error {
	report := filepath.Join(dir, "report.json")
	args := []string{"-runtime-endpoint", "unix://" + n.Socket, "-image-endpoint", "unix://" + n.Socket,
		"-config", "/nonexistent", "-parallel", *parallel, "-report-dir", dir, "-ginkgo.focus", *focus,
		"-ginkgo.skip", "benchmark", "-ginkgo.json-report", report}
	if _, err := os.Stat(nri); err == nil {
		args = append(args, "-nri-socket", nri)
	}
	args = append(args, more...)
	var out bytes.Buffer
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &out
	failed := n.Space.Run(cmd)
	result, err := ginkgo.Read(report)
	if err != nil {
		return errors.Join(failed, err, fmt.Errorf("%s", out.String()))
	}
	count := map[string]int{}
	for _, s := range result.Specs {
		switch {
		case s.Failed():
			count["failed"]++
			fmt.Printf("FAIL %s (%s): %s\n", s.Name, s.Where, s.Message)
		case s.State == ginkgo.Skipped && s.Chosen():
			count[ginkgo.Skipped]++
			fmt.Printf("skip %s: %s\n", s.Name, s.Message)
		case s.State == ginkgo.Passed && s.IsSpec():
			count[ginkgo.Passed]++
		}
	}
	fmt.Printf("%d passed, %d failed, %d skipped\n", count[ginkgo.Passed], count["failed"], count[ginkgo.Skipped])
	if failed == nil && count[ginkgo.Passed] == 0 {
		return errors.New("no spec ran")
	}
	return failed
}
