package ginkgo

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

const written = `[{"SpecialSuiteFailureReasons":["Suite Timeout Elapsed"],"SpecReports":[
{"ContainerHierarchyTexts":["[sig-node] Pods","when  they"],"LeafNodeType":"It","LeafNodeText":"run",
 "State":"passed","RunTime":2000000000},
{"ContainerHierarchyTexts":null,"LeafNodeType":"It","LeafNodeText":"alone","State":"failed",
 "Failure":{"Message":"it went","Location":{"FileName":"a.go","LineNumber":7}}},
{"LeafNodeType":"It","LeafNodeText":"other","State":"skipped"},
{"LeafNodeType":"It","LeafNodeText":"two processors","State":"skipped","Failure":{"Message":"there is one"}},
{"LeafNodeType":"It","LeafNodeText":"later","State":"pending"},
{"LeafNodeType":"SynchronizedBeforeSuite","LeafNodeText":"","State":"passed"}]}]`

func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report.json")
	if err := os.WriteFile(path, []byte(written), 0o644); err != nil {
		t.Fatal(err)
	}
	r, err := Read(path)
	if err != nil || len(r.Specs) != 6 || !slices.Equal(r.Troubles, []string{"Suite Timeout Elapsed"}) {
		t.Fatalf("%v: %+v", err, r)
	}
	if s := r.Specs[0]; s.Name != "[sig-node] Pods when they run" || s.Took != 2*time.Second || s.Failed() || !s.IsSpec() {
		t.Errorf("%+v", s)
	}
	if s := r.Specs[1]; s.Name != "alone" || !s.Failed() || s.Message != "it went" || s.Where != "a.go:7" {
		t.Errorf("%+v", s)
	}
	for i, chosen := range []bool{true, true, false, true, false, true} {
		if r.Specs[i].Chosen() != chosen {
			t.Errorf("%+v: chosen %v", r.Specs[i], !chosen)
		}
	}
	if r.Specs[3].Failed() || r.Specs[5].IsSpec() {
		t.Errorf("%+v", r.Specs)
	}
}

func TestReadRefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report.json")
	if _, err := Read(path); err == nil {
		t.Error("a report that is not there was read")
	}
	if err := os.WriteFile(path, []byte(`[{"SpecReports":`), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path); err == nil {
		t.Error("half a report was read")
	}
}
