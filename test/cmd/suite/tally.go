package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sort"
	"strings"
	"time"
)

// tally counts results and prints what a reader wants to see: failures whole, the rest in a line for each package.
type tally struct {
	out            io.Writer
	passed, failed int
	failures       []string
	skips          map[string]int // reason to number of tests
	began          time.Time
	took           []string // of each section, its name and how long it took
	// known has the tests that are known to fail, by package and test, and why. Each is taken out when it is counted.
	known map[string]string
}

func newTally(out io.Writer) *tally {
	return &tally{out: out, skips: map[string]int{}, began: time.Now()}
}

func (t *tally) section(s section) {
	began := time.Now()
	_, _ = fmt.Fprintf(t.out, "\n=== %s: %s\n", s.name, s.title)
	passed, failed := t.passed, t.failed
	s.run(t)
	length := time.Since(began)
	t.took = append(t.took, fmt.Sprintf("%s %s", s.name, length.Round(time.Second)))
	_, _ = fmt.Fprintf(t.out, "    %s: %d passed, %d failed in %s\n", s.name, t.passed-passed, t.failed-failed,
		length.Round(100*time.Millisecond))
}

func (t *tally) pass(string) { t.passed++ }

func (t *tally) fail(name, detail string) {
	t.failed++
	t.failures = append(t.failures, name)
	_, _ = fmt.Fprintf(t.out, "FAIL %s\n", name)
	for _, line := range strings.Split(strings.TrimRight(detail, "\n"), "\n") {
		_, _ = fmt.Fprintf(t.out, "     %s\n", line)
	}
}

func (t *tally) skip(name, reason string) {
	t.skips[reason]++
	_, _ = fmt.Fprintf(t.out, "skip %s: %s\n", name, reason)
}

// command runs a program that passes when it exits with 0.
func (t *tally) command(name string, args ...string) {
	label := name + " " + strings.Join(args, " ")
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.fail(label, string(out)+err.Error())
		return
	}
	t.pass(label)
}

// goTest runs `go test` and counts the tests in it. Of a test with subtests, only those count.
func (t *tally) goTest(args ...string) {
	// The section vet sees all packages. Without tables for debuggers a test is linked in two thirds of the time.
	cmd := exec.Command("go", append([]string{"test", "-json", "-vet=off", "-ldflags=-w"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.fail("go test", err.Error())
		return
	}
	failed, known := t.failed, len(t.known)
	t.read(out)
	if err := cmd.Wait(); err != nil && t.failed == failed && len(t.known) == known {
		t.fail("go test "+strings.Join(args, " "), err.Error())
	}
}

// event is a line of `go test -json`.
type event struct {
	Action, Package, ImportPath, Test, Output string
	Elapsed                                   float64
	FailedBuild                               string
}

// results is what is known of one package.
type results struct {
	verdict map[string]string           // of each test
	output  map[string]*strings.Builder // of each test; of the package under ""
	paused  map[string]bool             // waiting for its turn
}

func (t *tally) read(r io.Reader) {
	packages := map[string]*results{}
	builds := map[string]*strings.Builder{}
	scanner := bufio.NewScanner(r)
	scanner.Buffer(nil, 1<<24)
	for scanner.Scan() {
		var e event
		if err := json.Unmarshal(scanner.Bytes(), &e); err != nil {
			_, _ = fmt.Fprintln(t.out, scanner.Text())
			continue
		}
		if strings.HasPrefix(e.Action, "build-") {
			write(builds, e.ImportPath, e.Output)
			continue
		}
		p := packages[e.Package]
		if p == nil {
			p = &results{map[string]string{}, map[string]*strings.Builder{}, map[string]bool{}}
			packages[e.Package] = p
		}
		if t.take(p, e, builds) {
			delete(packages, e.Package) // it may come again, with another environment
		}
	}
}

func write(to map[string]*strings.Builder, key, text string) {
	if to[key] == nil {
		to[key] = &strings.Builder{}
	}
	to[key].WriteString(text)
}

// take notes an event, and says whether it ended the package.
func (t *tally) take(p *results, e event, builds map[string]*strings.Builder) bool {
	switch e.Action {
	case "output":
		write(p.output, e.Test, e.Output)
	case "pause", "cont":
		p.paused[e.Test] = e.Action == "pause"
	case "pass", "fail", "skip":
		p.verdict[e.Test] = e.Action
		if e.Test == "" {
			if b := builds[e.FailedBuild]; b != nil {
				write(p.output, "", b.String())
			}
			t.count(p, e)
			return true
		}
	}
	return false
}

// count adds up a package that has ended.
func (t *tally) count(p *results, end event) {
	names := make([]string, 0, len(p.verdict))
	for name := range p.verdict {
		names = append(names, name)
	}
	for name := range p.output {
		if name != "" && end.Action == "fail" && p.inTheMiddle(name) {
			// The process died in the middle of it, and has said of what by itself.
			p.verdict[name], names = "fail", append(names, name)
			p.output[name].WriteString(firstLines(text(p.output[""]), mostDying))
		}
	}
	sort.Strings(names)
	failed, passed, known := t.failed, t.passed, len(t.known)
	for _, name := range names {
		if name != "" && !hasWorse(name, p.verdict, names) {
			t.countTest(p, end.Package, name)
		}
	}
	if end.Action == "fail" && t.failed == failed && len(t.known) == known {
		t.fail(end.Package, text(p.output[""]))
	}
	if n := t.passed - passed; end.Action == "pass" && n > 0 {
		_, _ = fmt.Fprintf(t.out, "ok   %s: %d in %.1fs\n", end.Package, n, end.Elapsed)
	}
}

// inTheMiddle says of a test that it has begun and not ended, and waited neither for its turn nor for a subtest.
func (p *results) inTheMiddle(name string) bool {
	if _, ended := p.verdict[name]; ended || p.paused[name] {
		return false
	}
	for other := range p.output {
		if _, ended := p.verdict[other]; !ended && strings.HasPrefix(other, name+"/") {
			return false
		}
	}
	return true
}

// hasWorse says whether the subtests of name tell all there is to tell of it.
func hasWorse(name string, verdict map[string]string, names []string) bool {
	has, failing := false, false
	for _, other := range names {
		if strings.HasPrefix(other, name+"/") {
			has = true
			failing = failing || verdict[other] == "fail"
		}
	}
	return has && (failing || verdict[name] != "fail")
}

func (t *tally) countTest(p *results, pkg, name string) {
	verdict := p.verdict[name]
	if why, ok := t.known[pkg+" "+name]; ok {
		delete(t.known, pkg+" "+name)
		if verdict == "fail" {
			t.skip(pkg+" "+name, why)
		} else {
			t.fail(pkg+" "+name, "it is known to fail, and did not: "+verdict+". The reason was: "+why)
		}
		return
	}
	switch verdict {
	case "pass":
		t.pass(name)
	case "fail":
		t.fail(pkg+" "+name, text(p.output[name]))
	case "skip":
		t.skip(pkg+" "+name, reason(text(p.output[name])))
	}
}

func text(b *strings.Builder) string {
	if b == nil {
		return ""
	}
	return b.String()
}

// mostDying is how many lines are told of a process that has died: the first say why, and others are stacks.
const mostDying = 600

func firstLines(text string, n int) string {
	lines := strings.SplitAfter(text, "\n")
	return strings.Join(lines[:min(n, len(lines))], "")
}

// reason is what a skipped test said.
func reason(output string) string {
	for _, line := range strings.Split(output, "\n") {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "===") && !strings.HasPrefix(line, "---") {
			_, said, ok := strings.Cut(line, ".go:")
			if _, words, more := strings.Cut(said, ": "); ok && more {
				return words
			}
			return line
		}
	}
	return "no reason given"
}

// finish prints the outcome and returns the exit code.
func (t *tally) finish() int {
	_, _ = fmt.Fprintf(t.out, "\nTook %s: %s.\n", time.Since(t.began).Round(time.Second), strings.Join(t.took, ", "))
	for _, f := range t.failures {
		_, _ = fmt.Fprintf(t.out, "failed: %s\n", f)
	}
	for reason, n := range t.skips {
		_, _ = fmt.Fprintf(t.out, "skipped %d: %s\n", n, reason)
	}
	_, _ = fmt.Fprintf(t.out, "%d passed, %d failed\n", t.passed, t.failed)
	if t.failed > 0 || t.passed == 0 {
		return 1
	}
	return 0
}
