// Package report keeps what was measured, and shows it as a table for people and as JSON for programs.
package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sort"
	"sync"
	"time"
)

// The units of a metric. Less is better in each.
const (
	Milliseconds = "ms"
	Percent      = "%"
	Mebibytes    = "MiB"
	Count        = ""
	PerSecond    = "/s"
	CPUShare     = "ms/s" // processor time in milliseconds per second
)

// Report is one run of the benchmark.
type Report struct {
	Day      string            `json:"day"`
	Machine  Machine           `json:"machine"`
	Settings map[string]string `json:"settings"`
	Runtimes []Runtime         `json:"runtimes"`        // in the order of the columns
	Notes    []string          `json:"notes,omitempty"` // what else must be known to judge the numbers
	Metrics  []*Metric         `json:"metrics"`
	Goals    []Goal            `json:"goals,omitempty"`
	// Tail is the percentile beside the median, if not the 90th.
	Tail int `json:"tail,omitempty"`

	mu    sync.Mutex
	index map[string]*Metric
}

// Runtime is one column.
type Runtime struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Goal is what the first runtime shall reach in a row: at most this share of another's median.
type Goal struct {
	Section string  `json:"section"`
	Name    string  `json:"name"`
	Over    string  `json:"over"` // the other runtime
	AtMost  float64 `json:"at_most"`
}

// Metric is one row: everything measured of one quantity.
type Metric struct {
	Section string                `json:"section"`
	Name    string                `json:"name"`
	Unit    string                `json:"unit"`
	Values  map[string]*Statistic `json:"values"` // by runtime
}

// Statistic describes the samples of one runtime.
type Statistic struct {
	Samples []float64 `json:"samples"`
	Median  float64   `json:"median"`
	P90     float64   `json:"p90"`
	Min     float64   `json:"min"`
	Tail    float64   `json:"tail,omitempty"` // where the report has one of its own
}

// New begins a report of today on this machine.
func New() (*Report, error) {
	machine, err := thisMachine()
	return &Report{
		Day: time.Now().UTC().Format(time.DateOnly), Machine: machine,
		Settings: map[string]string{}, index: map[string]*Metric{},
	}, err
}

// Add adds a sample. Rows stand in the order of their first samples.
func (r *Report) Add(section, name, unit, runtime string, value float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := section + "\x00" + name
	m := r.index[key]
	if m == nil {
		m = &Metric{Section: section, Name: name, Unit: unit, Values: map[string]*Statistic{}}
		r.index[key] = m
		r.Metrics = append(r.Metrics, m)
	}
	s := m.Values[runtime]
	if s == nil {
		s = &Statistic{}
		m.Values[runtime] = s
	}
	s.Samples = append(s.Samples, round(value))
}

// AddTime adds a sample in milliseconds.
func (r *Report) AddTime(section, name, runtime string, d time.Duration) {
	r.Add(section, name, Milliseconds, runtime, float64(d)/float64(time.Millisecond))
}

// Introduce notes what a runtime says it is, and gives it a column when it has none.
func (r *Report) Introduce(runtime, version string) {
	for i := range r.Runtimes {
		if r.Runtimes[i].Name == runtime {
			r.Runtimes[i].Version = version
			return
		}
	}
	r.Runtimes = append(r.Runtimes, Runtime{Name: runtime, Version: version})
}

// WriteJSON finishes the statistics and writes the whole report.
func (r *Report) WriteJSON(w io.Writer) error {
	r.finish()
	enc := json.NewEncoder(w)
	enc.SetIndent("", " ")
	if err := enc.Encode(r); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// WriteAll prints the table, and writes the table and the JSON to files where paths are given.
func (r *Report) WriteAll(table, json string) error {
	errs := []error{r.WriteTable(os.Stdout)}
	for path, write := range map[string]func(io.Writer) error{table: r.WriteTable, json: r.WriteJSON} {
		if path != "" {
			errs = append(errs, writeFile(path, write))
		}
	}
	return errors.Join(errs...)
}

func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

func (r *Report) finish() {
	for _, m := range r.Metrics {
		for _, s := range m.Values {
			s.Median, s.P90, s.Min = quantile(s.Samples, 0.5), quantile(s.Samples, 0.9), quantile(s.Samples, 0)
			if r.Tail > 0 {
				s.Tail = quantile(s.Samples, float64(r.Tail)/100)
			}
		}
	}
}

// Quantile is that of the samples so far, NaN where there are none.
func (r *Report) Quantile(section, name, runtime string, q float64) float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.index[section+"\x00"+name]; m != nil && m.Values[runtime] != nil {
		return quantile(m.Values[runtime].Samples, q)
	}
	return math.NaN()
}

// quantile interpolates between the two samples next to it.
func quantile(samples []float64, q float64) float64 {
	if len(samples) == 0 {
		return math.NaN()
	}
	sorted := append([]float64(nil), samples...)
	sort.Float64s(sorted)
	at := q * float64(len(sorted)-1)
	low := int(at)
	if low+1 == len(sorted) {
		return sorted[low]
	}
	return round(sorted[low] + (at-float64(low))*(sorted[low+1]-sorted[low]))
}

func round(v float64) float64 { return math.Round(v*10000) / 10000 }
