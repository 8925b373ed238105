package layer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
)

// growing are layers of which each has a part that an image may have any number of times, n.
var growing = map[string]func(n int) attack{
	"far hard links": func(n int) attack {
		return attack{lower: items(file("f", "x")), upper: func(add func(item)) {
			for i := range n {
				add(hardlink(fmt.Sprint("l", i), "f"))
			}
		}}
	},
	"a chain of far hard links": func(n int) attack {
		return attack{lower: items(file("f", "x")), upper: func(add func(item)) {
			for i := range n {
				add(hardlink(fmt.Sprintf("l%06d", i), fmt.Sprintf("l%06d", i+1)))
			}
			add(hardlink(fmt.Sprintf("l%06d", n), "f"))
		}}
	},
	"hard links to deep files": func(n int) attack {
		deep := strings.Repeat("d/", 300)
		return attack{upper: func(add func(item)) {
			add(file(deep+"f", "x"))
			for i := range n {
				add(hardlink(fmt.Sprint("l", i), deep+"f"))
			}
		}}
	},
	"undescribed deep directories": func(n int) attack {
		return attack{upper: func(add func(item)) {
			for i := range n / 20 {
				add(file(fmt.Sprint(i, "/", strings.Repeat("d/", 150), "f"), ""))
			}
		}}
	},
	"undescribed deep directories over the same": func(n int) attack {
		make := func(add func(item)) {
			for i := range n / 20 {
				add(file(fmt.Sprint(i, "/", strings.Repeat("d/", 150), "f"), ""))
			}
		}
		return attack{lower: make, upper: make}
	},
	"files through symlinks of the same layer": func(n int) attack {
		return attack{upper: func(add func(item)) {
			for i := range n {
				add(symlink(fmt.Sprint("l", i), fmt.Sprint("d", i)))
				add(file(fmt.Sprint("l", i, "/f"), ""))
			}
		}}
	},
	"files through symlinks below": func(n int) attack {
		return attack{lower: func(add func(item)) {
			for i := range n {
				add(dir(fmt.Sprint("d", i), 0o755))
				add(symlink(fmt.Sprint("l", i), fmt.Sprint("d", i)))
			}
		}, upper: func(add func(item)) {
			for i := range n {
				add(file(fmt.Sprint("l", i, "/f"), ""))
			}
		}}
	},
	"symlinks below that lead to one directory": func(n int) attack {
		return attack{lower: func(add func(item)) {
			add(dir("d", 0o755))
			for i := range n {
				add(symlink(fmt.Sprint("l", i), "d"))
			}
		}, upper: func(add func(item)) {
			for i := range n {
				add(file(fmt.Sprint("l", i, "/f", i), ""))
				add(file(fmt.Sprint("l", i, "/same"), "x"))
			}
		}}
	},
	"chains of symlinked directories below": func(n int) attack {
		return attack{lower: func(add func(item)) {
			for i := range n / 20 {
				for k := range 20 {
					add(symlink(fmt.Sprint(i, "/", strings.Repeat("d/", k), "l"), "d"))
				}
				add(dir(fmt.Sprint(i, "/", strings.Repeat("d/", 20), "d"), 0o755))
			}
		}, upper: func(add func(item)) {
			for i := range n / 20 {
				add(file(fmt.Sprint(i, "/", strings.Repeat("l/", 20), "f"), ""))
			}
		}}
	},
	"opaque marks": func(n int) attack {
		return attack{lower: items(dir("d", 0o755)), upper: func(add func(item)) {
			for i := range n {
				add(file(fmt.Sprint("d", i, "/.wh..wh..opq"), ""))
				add(file("d/.wh..wh..opq", ""))
			}
		}}
	},
	"whiteouts": func(n int) attack {
		return attack{upper: func(add func(item)) {
			for i := range n {
				add(file(fmt.Sprint("d", i, "/.wh.x"), ""))
				add(file(fmt.Sprint("d/.wh.x", i), ""))
			}
		}}
	},
	"whiteouts through a symlink of what the layer brings": func(n int) attack {
		return attack{lower: items(dir("d", 0o755), symlink("l", "d")), upper: func(add func(item)) {
			for i := range n {
				add(file(fmt.Sprint("d/x", i), "x"))
				add(file(fmt.Sprint("l/.wh.x", i), ""))
			}
		}}
	},
	"names used twice": func(n int) attack {
		return attack{upper: func(add func(item)) {
			for i := range n {
				add(file(fmt.Sprint("f", i), "x"))
				add(hardlink(fmt.Sprint("h", i), fmt.Sprint("f", i)))
				add(file(fmt.Sprint("f", i), "y"))
			}
		}}
	},
	"one name used many times": func(n int) attack {
		return attack{upper: func(add func(item)) {
			for i := range n {
				add(dir("d", 0o755))
				add(file("d/f", "x"))
				add(file("d", fmt.Sprint(i)))
			}
		}}
	},
	"long paths": func(n int) attack {
		deep := strings.Repeat("d/", 300)
		return attack{upper: func(add func(item)) {
			add(file(deep+"f", ""))
			for i := range n {
				add(file(fmt.Sprint(deep, i), ""))
			}
		}}
	},
	"attributes": func(n int) attack {
		return attack{upper: func(add func(item)) {
			for i := range n {
				add(pax(dir(fmt.Sprint("d", i), 0o755), paxXattr+"user.a", strings.Repeat("v", 500)))
			}
		}}
	},
}

func items(all ...item) func(func(item)) {
	return func(add func(item)) {
		for _, i := range all {
			add(i)
		}
	}
}

// TestGrowth doubles each input twice: the bytes that are allocated, the system calls and the steps in the tree of
// directories must not more than double, but for what any layer takes.
func TestGrowth(t *testing.T) {
	const n = 60
	inMemory(t)
	for name := range growing {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			// How often a table is looked into depends on the seed of its hashes: in a small one, two names that share a
			// slot cost half as much again. The sums of several rounds depend less on it, and what grows too fast does so
			// in all of them.
			var one, two, four costs
			var problems []string
			for range 8 {
				one.add(growChild(t, name, n))
				two.add(growChild(t, name, 2*n))
				four.add(growChild(t, name, 4*n))
				if problems = growth(one, two, four); len(problems) == 0 {
					return
				}
			}
			t.Error(strings.Join(problems, "\n"))
		})
	}
}

// costs are what a layer took, by the name of what was counted.
type costs map[string]float64

func (c *costs) add(more costs) {
	if *c == nil {
		*c = costs{}
	}
	for what, n := range more {
		(*c)[what] += n
	}
}

// growth says what grows too fast when an input is doubled twice, and what is done too long without a look at the
// context.
func growth(one, two, four costs) (problems []string) {
	bounds := map[string]float64{"system-calls": 1000, "looks-into-the-tree": 5000, "allocated-bytes": 1 << 20}
	for what, most := range bounds {
		if each := four[what] / four["looks-at-the-context"]; each > most {
			problems = append(problems, fmt.Sprintf("%s between two looks at the context: %.0f", what, each))
		}
	}
	for what, begin := range one {
		first, second := two[what]-begin, four[what]-two[what]
		// What grows with the square of n has 4 here; the tables that double now and then have up to 3.
		if second > 3.4*max(first, begin/2) {
			problems = append(problems, fmt.Sprintf("%s: %.0f, %.0f, %.0f when the input is doubled",
				what, begin, two[what], four[what]))
		}
	}
	return problems
}

// countedContext counts the looks at it, and ends at one of them.
type countedContext struct {
	context.Context
	looks atomic.Int64
	ends  int64 // never when it is negative
}

func (c *countedContext) Err() error {
	if n := c.looks.Add(1); c.ends >= 0 && n > c.ends {
		return context.Canceled
	}
	return c.Context.Err()
}

// TestEnd ends the context at any of the looks at it: nothing is done after that but to return.
func TestEnd(t *testing.T) {
	inMemory(t)
	for name, make := range growing {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			a := make(40)
			whole := &countedContext{Context: t.Context(), ends: -1}
			if _, err := unpackAttack(whole, t, t.TempDir(), a); err != nil {
				t.Fatal(err)
			}
			all := whole.looks.Load()
			for _, at := range []int64{0, 1, all / 3, all / 2, 2 * all / 3, all - 2, all - 1} {
				ctx := &countedContext{Context: t.Context(), ends: at}
				if _, err := unpackAttack(ctx, t, t.TempDir(), a); !errors.Is(err, context.Canceled) {
					t.Errorf("ended at look %d of %d: %v", at, all, err)
				}
				if more := ctx.looks.Load() - at; more > 3 {
					t.Errorf("ended at look %d of %d, it was looked at %d times more", at, all, more)
				}
			}
		})
	}
}

func growChild(t *testing.T, name string, n int) costs {
	t.Helper()
	dir := t.TempDir()
	args, calls := []string{os.Args[0]}, filepath.Join(dir, "calls")
	if strace, err := exec.LookPath("strace"); err == nil {
		args = []string{strace, "-f", "-qq", "--seccomp-bpf", "-c", "-e", "trace=%file,%desc", "-o", calls, os.Args[0]}
	}
	cmd := exec.Command(args[0], append(args[1:], "-test.run=^TestGrowthChild$", "-test.v")...)
	cmd.Env = append(os.Environ(), "GROWTH="+name, "GROWTH_N="+strconv.Itoa(n), "GROWTH_ROOT="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	found := metrics(out)
	if raw, err := os.ReadFile(calls); err == nil {
		for _, line := range strings.Split(string(raw), "\n") {
			if f := strings.Fields(line); len(f) > 3 && f[len(f)-1] == "total" {
				found["system-calls"], _ = strconv.ParseFloat(f[3], 64)
			}
		}
	}
	if err := removeDeep(dir); err != nil {
		t.Fatal(err)
	}
	return found
}

func TestGrowthChild(t *testing.T) {
	n, err := strconv.Atoi(os.Getenv("GROWTH_N"))
	if err != nil {
		t.Skip("it is the child of TestGrowth")
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	ctx := &countedContext{Context: t.Context(), ends: -1}
	looks, err := unpackAttack(ctx, t, os.Getenv("GROWTH_ROOT"), growing[os.Getenv("GROWTH")](n))
	if err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	fmt.Printf("\nmetric allocated-bytes %d\nmetric looks-into-the-tree %d\nmetric looks-at-the-context %d\n",
		after.TotalAlloc-before.TotalAlloc, looks, ctx.looks.Load())
}
