package conformance

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"berth/test/conformance/ginkgo"
)

// The verdicts of a spec that does not pass.
const (
	Fails = "fails"
	Skips = "skips" // the spec finds that it cannot run here, and says so
)

// Entry is a spec that is known not to pass, and why.
type Entry struct {
	Spec, Verdict, Reason string
	Runtime               string // the one that it is true with; "" for each
	Site                  string // the one that it is true on; "" for each
}

// List is what is known of specs that do not pass.
type List []Entry

//go:embed known.txt
var knownText string

// Known is the list that runs of all specs, and of some, are compared with.
func Known() (List, error) { return ParseList(knownText) }

// ParseList reads a list: a line "fails: REASON" or "skips: REASON", and below it, each on a line that begins with a
// tab, the specs of which that is true. What is true with one runtime, or on one site, says so before the colon: "fails
// with RUNTIME on SITE: REASON". Lines that begin with # and empty ones are comments.
func ParseList(text string) (List, error) {
	var list List
	var head Entry
	for n, line := range strings.Split(text, "\n") {
		switch {
		case strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "\t"):
			entry := head
			entry.Spec = strings.TrimSpace(line)
			if head.Verdict == "" {
				return nil, fmt.Errorf("line %d: a spec without a reason above it", n+1)
			}
			if slices.ContainsFunc(list, entry.contradicts) {
				return nil, fmt.Errorf("line %d: %s is on the list already", n+1, entry.Spec)
			}
			list = append(list, entry)
		default:
			var err error
			if head, err = parseHead(line); err != nil {
				return nil, fmt.Errorf("line %d: %w", n+1, err)
			}
		}
	}
	return list, nil
}

func parseHead(line string) (Entry, error) {
	left, reason, ok := strings.Cut(line, ": ")
	words := strings.Fields(left)
	e := Entry{Reason: strings.TrimSpace(reason)}
	if !ok || e.Reason == "" || len(words) == 0 {
		return e, fmt.Errorf("%q gives no reason", line)
	}
	if e.Verdict = words[0]; e.Verdict != Fails && e.Verdict != Skips {
		return e, fmt.Errorf("a spec %s or %s: %q", Fails, Skips, line)
	}
	for rest := words[1:]; len(rest) > 0; rest = rest[2:] {
		switch {
		case len(rest) > 1 && rest[0] == "with" && e.Runtime == "":
			e.Runtime = rest[1]
		case len(rest) > 1 && rest[0] == "on" && e.Site == "" && (rest[1] == Host || rest[1] == VM):
			e.Site = rest[1]
		default:
			return e, fmt.Errorf("%q begins neither a comment nor a reason", line)
		}
	}
	return e, nil
}

// contradicts says of two entries that they are about the same spec with the same runtime on the same site.
func (e Entry) contradicts(o Entry) bool {
	meet := func(a, b string) bool { return a == b || a == "" || b == "" }
	return e.Spec == o.Spec && meet(e.Runtime, o.Runtime) && meet(e.Site, o.Site)
}

// Expectation is what a run is compared with.
type Expectation struct {
	Known   List
	Runtime string
	Site    string   // Host or VM
	Whole   bool     // each spec of Known is to have run
	Specs   []string // are to have run, besides
}

// Difference is a spec that did not end as it was expected to.
type Difference struct{ Spec, What string }

// OutcomeFile is where a run leaves its outcome, in JSON, among its results.
const OutcomeFile = "outcome.json"

// Outcome is what a run came to.
type Outcome struct {
	Passed      []string
	Known       []string // did not pass, as it is known
	Differences []Difference
}

// Compare says what differs from the expectation: a spec that is not known to fail and does, one that is known to and
// passes, and one that did not run at all.
func (e Expectation) Compare(ran []ginkgo.Spec) Outcome {
	var o Outcome
	differs := func(spec, format string, args ...any) {
		o.Differences = append(o.Differences, Difference{spec, fmt.Sprintf(format, args...)})
	}
	known := e.holding()
	seen := map[string]bool{}
	for _, s := range ran {
		if !s.Chosen() || !s.IsSpec() && !s.Failed() {
			continue
		}
		seen[s.Name] = true
		entry, listed := known[s.Name]
		switch verdict := verdictOf(s); {
		case verdict == entry.Verdict && listed:
			o.Known = append(o.Known, s.Name)
		case verdict == "" && listed:
			differs(s.Name, "passes, and is on the list: take it off (%s: %s)", entry.Verdict, entry.Reason)
		case verdict == "":
			o.Passed = append(o.Passed, s.Name)
		case listed:
			differs(s.Name, "%s, and not as the list says (%s: %s): %s", verdict, entry.Verdict, entry.Reason, s.Message)
		default:
			differs(s.Name, "%s (%s, after %s, at %s): %s", verdict, s.State, s.Took.Round(tenth), s.Where, s.Message)
		}
	}
	missing := slices.Clone(e.Specs)
	if e.Whole {
		for name := range known {
			missing = append(missing, name)
		}
	}
	slices.Sort(missing)
	for _, name := range slices.Compact(missing) {
		if !seen[name] {
			differs(name, "did not run")
		}
	}
	return o
}

// holding is what is known with the runtime on the site, by spec.
func (e Expectation) holding() map[string]Entry {
	all := map[string]Entry{}
	for _, entry := range e.Known {
		if (entry.Runtime == "" || entry.Runtime == e.Runtime) && (entry.Site == "" || entry.Site == e.Site) {
			all[entry.Spec] = entry
		}
	}
	return all
}

// verdictOf is "" for a spec that passed.
func verdictOf(s ginkgo.Spec) string {
	switch s.State {
	case ginkgo.Passed:
		return ""
	case ginkgo.Skipped:
		return Skips
	}
	return Fails
}
