// Package ginkgo reads the reports that suites of Ginkgo write with --json-report.
package ginkgo

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"
)

// The states of a spec that matter by name. Each other one is a failure of some sort.
const (
	Passed  = "passed"
	Skipped = "skipped"
	Pending = "pending"
)

// Report is what a run of suites came to.
type Report struct {
	Specs    []Spec
	Troubles []string // why a suite failed other than by its specs, such as a time that was over
}

// Spec is how one spec ended, or a node around specs, such as one that runs before the suite.
type Spec struct {
	Name    string // the texts of its containers and its own
	State   string
	Message string // of a failure, or why the spec skipped itself
	Where   string // file and line of that
	Took    time.Duration
	node    string
}

// IsSpec tells a spec from what runs around specs, such as before the suite.
func (s Spec) IsSpec() bool { return s.node == "It" }

// Chosen says whether the spec was to run. One that was filtered out is skipped without a word.
func (s Spec) Chosen() bool {
	return s.State != Pending && (s.State != Skipped || s.Message != "")
}

// Failed says whether the spec ended as no spec should.
func (s Spec) Failed() bool { return s.State != Passed && s.State != Skipped && s.State != Pending }

// suite is what this package reads of a suite in a report.
type suite struct {
	SpecialSuiteFailureReasons []string
	SpecReports                []struct {
		ContainerHierarchyTexts           []string
		LeafNodeText, LeafNodeType, State string
		RunTime                           time.Duration
		Failure                           struct {
			Message  string
			Location struct {
				FileName   string
				LineNumber int
			}
		}
	}
}

// Read reads a report. What its suites ran is in one list.
func Read(path string) (r Report, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	var suites []suite
	if err := json.Unmarshal(data, &suites); err != nil {
		return r, fmt.Errorf("read %s: %w", path, err)
	}
	for _, s := range suites {
		r.Troubles = append(r.Troubles, s.SpecialSuiteFailureReasons...)
		for _, spec := range s.SpecReports {
			texts := strings.Join(spec.ContainerHierarchyTexts, " ") + " " + spec.LeafNodeText
			at := spec.Failure.Location
			r.Specs = append(r.Specs, Spec{
				Name:  strings.Join(strings.Fields(texts), " "),
				State: spec.State, Message: spec.Failure.Message, node: spec.LeafNodeType,
				Where: fmt.Sprintf("%s:%d", at.FileName, at.LineNumber), Took: spec.RunTime,
			})
		}
	}
	return r, nil
}
