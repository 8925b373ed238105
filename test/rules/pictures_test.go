package rules

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"

	"berth/test/fixture"
	"berth/test/golden"
)

// picture is where a picture of docs/ is kept. `go test ./test/rules -update` draws it anew.
func picture(name string) string { return filepath.Join(fixture.Repo(), "docs/pictures", name) }

const (
	middle   = `text-anchor="middle" fill="#202020"`
	bold     = `text-anchor="middle" fill="#202020" font-weight="bold"`
	small    = `text-anchor="middle" fill="#505050" font-size="11"`
	left     = `fill="#505050" font-size="12"`
	outline  = `fill="none" stroke="#909090" stroke-dasharray="5 3"`
	ours     = `fill="#dcecf8" stroke="#3a78a8"`
	theirs   = `fill="#f8e6d4" stroke="#b0742c"`
	workload = `fill="#e4f2dc" stroke="#5c9440"`
	wire     = `stroke="#606060"`
)

// hue tells the arrows of one part from those of another.
var hue = map[string]string{
	"cli": "#c08030", "cri": "#3070c0", "nri": "#904090", "pod": "#309050", "image": "#b04040", "stream": "#606060",
	"meter": "#208080", "session": "#806020", "sandbox": "#6050b0",
}

// TestPictureOfPackages draws the parts of internal/ on their floors, with the imports among them.
func TestPictureOfPackages(t *testing.T) {
	golden.File(t, picture("packages.svg"), drawPackages(t).text("The packages of Berth and their imports"))
}

// imports tells for each part of internal/, and each command, which parts it imports, and which packages a part has
// below it.
func imports(t *testing.T) (arrows map[string][]string, below map[string][]string) {
	arrows, below = map[string][]string{}, map[string][]string{}
	for _, s := range sources(t) {
		from := part("berth/" + s.pkg())
		if strings.HasPrefix(s.pkg(), "cmd/") {
			from = s.pkg()
		}
		if from == "" || s.isTest() {
			continue
		}
		if arrows[from] == nil {
			arrows[from] = []string{}
		}
		if rest, ok := strings.CutPrefix(s.pkg(), "internal/"+from+"/"); ok && !slices.Contains(below[from], rest) {
			below[from] = append(below[from], rest)
		}
		for _, spec := range s.file.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			if to := part(path); to != "" && to != from && !slices.Contains(arrows[from], to) {
				arrows[from] = append(arrows[from], to)
			}
		}
	}
	return arrows, below
}

const (
	pageWidth = 1160
	boxHeight = 40
	rowGap    = 16
	floorGap  = 74
)

// floor is a level of the house, and what is on it.
type floor struct {
	name string
	has  func(part string) bool
}

// floors are those of the picture of packages, from the top.
var floors = []floor{
	{"commands: they wire", func(p string) bool { return strings.HasPrefix(p, "cmd/") }},
	{"what clients and plugins speak to", func(p string) bool { return level(p) == 5 }},
	{"the core", func(p string) bool { return level(p) == 4 }},
	{"rooms around pod", func(p string) bool { return level(p) == 3 }},
	{"what they know of pods", func(p string) bool { return level(p) == 2 }},
	{"leaves: each does one thing, and does not know the others", func(p string) bool { return level(p) == leaf }},
	{"foundation: any other may import it", func(p string) bool { return level(p) < leaf }},
}

func floorOf(part string) int {
	return slices.IndexFunc(floors, func(f floor) bool { return f.has(part) })
}

// drawPackages draws the arrows of imports but those of the commands, which import nearly all, and those that lead to
// the foundation, which come from everywhere.
func drawPackages(t *testing.T) *drawing {
	t.Helper()
	arrows, below := imports(t)
	rows := make([][]string, len(floors))
	for part := range arrows {
		f := floorOf(part)
		if f < 0 {
			t.Fatalf("%s has a level that is no floor of the picture: add one to floors", part)
		}
		rows[f] = append(rows[f], part)
	}
	type place struct{ x, top, w, row int }
	places := map[string]place{}
	d := &drawing{width: pageWidth}
	y, row := 24, 0
	for f, parts := range rows {
		sort.Strings(parts)
		y += 18
		d.words(10, y-8, left, floors[f].name)
		for len(parts) > 0 {
			n := len(parts)
			if n > 11 {
				n = (n + 1) / 2
			}
			slot := pageWidth / n
			w := min(slot-12, 210)
			if f == 2 { // they have most packages below them
				w = slot - 12
			}
			for i, p := range parts[:n] {
				places[p] = place{i*slot + slot/2, y, w, row}
			}
			parts, y, row = parts[n:], y+boxHeight+rowGap, row+1
		}
		if f > 0 && f < len(rows)-2 { // room for arrows
			y += floorGap - rowGap
		}
	}
	d.height = y + 4
	for _, from := range sortedKeys(arrows) {
		for _, to := range slices.Sorted(slices.Values(arrows[from])) {
			a, b := places[from], places[to]
			if floorOf(from) > 0 && level(to) >= leaf && a.row < b.row {
				d.line(a.x, a.top+boxHeight, b.x, b.top, `stroke="`+hue[from]+`"`)
			}
		}
	}
	for _, p := range sortedKeys(arrows) {
		at := places[p]
		d.box(at.x-at.w/2, at.top, at.w, boxHeight, ours)
		sub := strings.Join(slices.Sorted(slices.Values(below[p])), ", ")
		if sub == "" {
			d.words(at.x, at.top+25, middle, p)
			continue
		}
		d.words(at.x, at.top+17, middle, p)
		d.words(at.x, at.top+32, small, sub)
	}
	return d
}

func sortedKeys(m map[string][]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

// process is a box in the picture of processes.
type process struct{ name, what string }

// column is what one runtime runs for a pod of one container.
type column struct {
	runtime        string // its name in the result
	daemon, parent process
	holder         process // of the namespaces, where there is such a process
}

var columns = []column{
	{
		runtime: "berth",
		daemon:  process{"berth", "the daemon"},
		parent:  process{"berth-monitor", "parent of the containers; their streams and logs"},
	},
	{
		runtime: "containerd",
		daemon:  process{"containerd", "the daemon, with its CRI plugin; it writes the logs"},
		parent:  process{"containerd-shim-runc-v2", "parent of the containers; their streams"},
		holder:  process{"pause", "holds the namespaces"},
	},
	{
		runtime: "crio",
		daemon:  process{"crio", "the daemon, CRI-O"},
		parent:  process{"conmon", "parent of one container; its streams and logs"},
	},
}

// memoryResult is where the memory of all three was measured, side by side. bench/README.md says how to measure it
// anew.
const memoryResult = "bench/results/memory-2-cores.json"

// TestPictureOfProcesses draws the processes of a pod beside those of other runtimes, with the memory that was
// measured.
func TestPictureOfProcesses(t *testing.T) {
	golden.File(t, picture("processes.svg"), drawProcesses(t).text("The processes of a pod of one container"))
}

func drawProcesses(t *testing.T) *drawing {
	t.Helper()
	const width, box = 350, 46
	d := &drawing{width: 20 + len(columns)*(width+20), height: 370}
	d.words(20, 26, left, "one for each node")
	d.words(20, 142, left, "for each pod of one container")
	for i, c := range columns {
		style := theirs
		if i == 0 {
			style = ours
		}
		x := 20 + i*(width+20)
		draw := func(p process, x, y, w int, style string) {
			d.box(x, y, w, box, style)
			d.words(x+w/2, y+19, bold, p.name)
			d.words(x+w/2, y+36, small, p.what)
		}
		draw(c.daemon, x+20, 40, width-40, style)
		d.words(x+width/2, 106, small, measured(t, c, "daemon, PSS")+" MiB of memory (PSS) with 50 pods")
		d.box(x, 152, width, 166, outline)
		draw(c.parent, x+20, 168, width-40, style)
		children := []process{{"container", "its own program"}}
		if c.holder.name != "" {
			children = append(children, c.holder)
		}
		w := min(width/len(children)-40, 160)
		for j, child := range children {
			at, look := x+(2*j+1)*width/(2*len(children)), workload
			if j > 0 {
				look = style
			}
			d.line(at, 168+box, at, 256, wire)
			draw(child, at-w/2, 256, w, look)
		}
		d.words(x+width/2, 338, bold, measured(t, c, "helpers of a pod, PSS")+" MiB for each pod")
		d.words(x+width/2, 356, small, "beside the container's own program")
	}
	return d
}

// measured reads a figure of memoryResult.
func measured(t *testing.T, c column, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(fixture.Repo(), memoryResult))
	if err != nil {
		t.Fatal(err)
	}
	var result struct {
		Metrics []struct {
			Name   string
			Values map[string]struct{ Median float64 }
		}
	}
	if err := json.Unmarshal(text, &result); err != nil {
		t.Fatal(err)
	}
	for _, m := range result.Metrics {
		if v, ok := m.Values[c.runtime]; ok && m.Name == name {
			if v.Median >= 10 {
				return fmt.Sprintf("%.0f", v.Median)
			}
			return fmt.Sprintf("%.2f", v.Median)
		}
	}
	t.Fatalf("%s has no %q of %s", memoryResult, name, c.runtime)
	return ""
}
