package host

import (
	"slices"
	"strconv"
	"strings"
)

// Advisory is a published way out of a container that some versions of a runtime leave open.
type Advisory struct {
	ID      string // of the CVE
	Source  string // where it is published
	Date    string // when it was
	program string
	since   string   // the first version that has it; "" is all of old
	fixed   []string // the first version without it in each line of releases, the oldest line first
}

// advisories are the ways out of a container that an image or a pod of Kubernetes can take. Those that need a person
// who checkpoints, a handler of crun for virtual machines or a runtime without root are not among them.
var advisories = []Advisory{
	{
		ID: "CVE-2019-5736", program: "runc", fixed: []string{"1.0.0-rc7"},
		Source: "https://www.openwall.com/lists/oss-security/2019/02/11/2", Date: "2019-02-11",
	},
	{
		ID: "CVE-2021-30465", program: "runc", fixed: []string{"1.0.0-rc95"},
		Source: "https://github.com/opencontainers/runc/security/advisories/GHSA-c3xm-pvg7-gh7r", Date: "2021-05-19",
	},
	{
		ID: "CVE-2024-21626", program: "runc", since: "1.0.0-rc93", fixed: []string{"1.1.12"},
		Source: "https://github.com/opencontainers/runc/security/advisories/GHSA-xr7r-f8xq-vfvv", Date: "2024-01-31",
	},
	{
		ID: "CVE-2025-31133", program: "runc", fixed: []string{"1.2.8", "1.3.3", "1.4.0"},
		Source: "https://github.com/opencontainers/runc/security/advisories/GHSA-9493-h29p-rfm2", Date: "2025-11-05",
	},
	{
		ID: "CVE-2025-52565", program: "runc", fixed: []string{"1.2.8", "1.3.3", "1.4.0"},
		Source: "https://github.com/opencontainers/runc/security/advisories/GHSA-qw9x-cqr3-wc7r", Date: "2025-11-05",
	},
	{
		ID: "CVE-2025-52881", program: "runc", fixed: []string{"1.2.8", "1.3.3", "1.4.0"},
		Source: "https://github.com/opencontainers/runc/security/advisories/GHSA-cgrx-mc8f-2prm", Date: "2025-11-05",
	},
	{
		ID: "CVE-2019-18837", program: "crun", fixed: []string{"0.10.5"},
		Source: "https://github.com/advisories/GHSA-992m-xc3g-r7rj", Date: "2019-11-13",
	},
	{
		ID: "CVE-2026-88264", program: "crun", fixed: []string{"1.30"},
		Source: "https://github.com/containers/crun/releases/tag/1.30", Date: "2026-09-24",
	},
	{
		ID: "CVE-2026-88265", program: "crun", fixed: []string{"1.30"},
		Source: "https://github.com/containers/crun/releases/tag/1.30", Date: "2026-09-24",
	},
}

// Holes are the advisories that a runtime is open to, as far as its version and its package tell. It has none that its
// package says to have closed: distributions mend old versions without a new number.
func (r Runtime) Holes() []Advisory {
	var open []Advisory
	for _, a := range advisories {
		if a.program == r.Program && a.concerns(r.Version) && !slices.Contains(r.Mended, a.ID) {
			open = append(open, a)
		}
	}
	return open
}

// concerns reports whether a version has the hole, going by its number alone. One that is no number tells nothing.
func (a Advisory) concerns(text string) bool {
	v, ok := parseRelease(text)
	if !ok {
		return false
	}
	if since, ok := parseRelease(a.since); ok && v.compare(since) < 0 {
		return false
	}
	for i, text := range a.fixed {
		f, _ := parseRelease(text)
		if v.compare(f) < 0 {
			continue
		}
		// It may be the beginning of the next line of releases, which got its fix later.
		if i+1 == len(a.fixed) || v.sameLine(f) {
			return false
		}
	}
	return true
}

// release is a version of a runtime.
type release struct {
	numbers   [3]int
	candidate int // of a release candidate; 0 for the release itself
}

// parseRelease reads 1.1.5, 1.30 and 1.0.0-rc95, and with them what distributions and builders put behind.
func parseRelease(text string) (r release, ok bool) {
	text, _, _ = strings.Cut(strings.TrimPrefix(text, "v"), "+")
	text, tail, _ := strings.Cut(strings.ReplaceAll(text, "~", "-"), "-")
	parts := strings.Split(text, ".")
	if len(parts) < 2 {
		return release{}, false
	}
	for i, part := range parts[:min(len(parts), 3)] {
		n, err := strconv.Atoi(part)
		if err != nil || n < 0 {
			return release{}, false
		}
		r.numbers[i] = n
	}
	if rc, is := strings.CutPrefix(tail, "rc"); is {
		digits := strings.TrimLeft(rc, ".-")
		end := strings.IndexFunc(digits, func(c rune) bool { return c < '0' || c > '9' })
		if end >= 0 {
			digits = digits[:end]
		}
		n, err := strconv.Atoi(digits)
		if err != nil {
			return release{}, false
		}
		r.candidate = max(n, 1)
	}
	return r, true
}

// sameLine says that both get their fixes from the same branch.
func (r release) sameLine(other release) bool { return slices.Equal(r.numbers[:2], other.numbers[:2]) }

func (r release) compare(other release) int {
	if c := slices.Compare(r.numbers[:], other.numbers[:]); c != 0 {
		return c
	}
	switch {
	case r.candidate == other.candidate:
		return 0
	case r.candidate == 0:
		return 1
	case other.candidate == 0 || r.candidate < other.candidate:
		return -1
	}
	return 1
}
