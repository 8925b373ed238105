package report

import (
	"bytes"
	"encoding/json"
	"flag"
	"math"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestQuantile(t *testing.T) {
	for _, c := range []struct {
		samples []float64
		q, want float64
	}{
		{[]float64{7}, 0.5, 7},
		{[]float64{3, 1, 2}, 0.5, 2},
		{[]float64{4, 1, 3, 2}, 0.5, 2.5},
		{[]float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, 0.9, 10},
		{[]float64{5, 1}, 0, 1},
		{[]float64{5, 1}, 1, 5},
	} {
		if got := quantile(c.samples, c.q); got != c.want {
			t.Errorf("quantile(%v, %v) = %v, want %v", c.samples, c.q, got, c.want)
		}
	}
}

// TestTailOfItsOwn has a report show another percentile than the 90th.
func TestTailOfItsOwn(t *testing.T) {
	r := sample(t)
	r.Tail = 95
	for i := range 100 {
		r.Add("Tail", "row", Count, "one", float64(i+1))
	}
	var got bytes.Buffer
	if err := r.WriteTable(&got); err != nil {
		t.Fatal(err)
	}
	if text := got.String(); !strings.Contains(text, " p95 ") || strings.Contains(text, " p90 ") {
		t.Errorf("the heading is wrong:\n%s", text)
	}
	if s := r.Metrics[len(r.Metrics)-1].Values["one"]; s.Tail < 95 || s.Tail > 96 {
		t.Errorf("the 95th percentile of 1 to 100 is %v", s.Tail)
	}
	if q := r.Quantile("Tail", "row", "one", 0.5); q != 50.5 {
		t.Errorf("the median is %v", q)
	}
	if q := r.Quantile("Tail", "no row", "one", 0.5); !math.IsNaN(q) {
		t.Errorf("of nothing it is %v", q)
	}
}

func sample(t *testing.T) *Report {
	t.Helper()
	r, err := New()
	if err != nil {
		t.Fatal(err)
	}
	r.Day = "2026-01-02"
	r.Machine = Machine{CPU: "a processor", Cores: 2, MemoryGiB: 8, Kernel: "6.1", Cgroup: "v2", OS: "an OS", Go: "go1.26"}
	r.Runtimes = []Runtime{{"one", "one 1.0"}, {"two", "two 2.0"}, {"floor", "alone"}}
	for i := range 11 {
		r.Add("Start", "pod start", Milliseconds, "one", float64(100+i))
		r.Add("Start", "pod start", Milliseconds, "two", float64(200+i))
		r.Add("Start", "pod start", Milliseconds, "floor", float64(50+i))
	}
	r.Add("Memory", "daemon", Mebibytes, "one", 9.876)
	r.Add("Memory", "daemon", Mebibytes, "two", 50)
	r.Notes = []string{"a note"}
	r.Goals = []Goal{
		{"Start", "pod start", "two", 0.5}, {"Start", "pod start", "floor", 2}, {"Memory", "daemon", "two", 0.25},
		{"Memory", "not measured", "two", 1},
	}
	r.Add("Start", "a late row", Milliseconds, "two", 0)
	return r
}

func TestTable(t *testing.T) {
	var got bytes.Buffer
	if err := sample(t).WriteTable(&got); err != nil {
		t.Fatal(err)
	}
	const golden = "testdata/table.md"
	if *update {
		if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("table is\n%s\nwant\n%s", got.Bytes(), want)
	}
}

func TestJSONHoldsEverySample(t *testing.T) {
	var text bytes.Buffer
	if err := sample(t).WriteJSON(&text); err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(text.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	one := back.Metrics[0].Values["one"]
	if len(one.Samples) != 11 || one.Median != 105 || one.P90 != 109 || one.Min != 100 {
		t.Errorf("samples of one came back as %+v", one)
	}
}

func TestMachineNamesNoHost(t *testing.T) {
	m, err := thisMachine()
	if err != nil {
		t.Fatal(err)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if m.Cores < 1 || m.MemoryGiB <= 0 || m.Kernel == "" {
		t.Errorf("machine is %+v", m)
	}
	if len(host) > 3 && bytes.Contains([]byte(m.String()), []byte(host)) {
		t.Errorf("%q names the host", m)
	}
}
