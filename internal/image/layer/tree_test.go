package layer

import (
	"fmt"
	"math/rand/v2"
	"sort"
	"strings"
	"testing"
)

// TestTree does to a tree what it does to a map of paths, at random.
func TestTree(t *testing.T) {
	for round := range 200 {
		tree, want := newPathTree[int](), map[string]nodeID{}
		within := func(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }
		some := func() (string, nodeID) {
			all := make([]string, 0, len(want)+1)
			for p := range want {
				all = append(all, p)
			}
			sort.Strings(append(all, "."))
			if len(all) == 0 || rand.IntN(4) == 0 {
				return ".", rootNode
			}
			p := all[rand.IntN(len(all))]
			return p, want[p]
		}
		for range 200 {
			p, id := some()
			name := fmt.Sprint(rand.IntN(6))
			switch child, there := tree.child(id, name); {
			case !there:
				want[join(p, name)] = tree.add(id, name)
			case rand.IntN(3) == 0:
				tree.remove(child)
				for q := range want {
					if within(q, join(p, name)) {
						delete(want, q)
					}
				}
			default:
				from := join(p, name)
				to, parent := some()
				if _, taken := tree.child(parent, name); taken || within(to, from) {
					continue
				}
				tree.move(child, parent)
				for q, moved := range want {
					if within(q, from) {
						delete(want, q)
						want[join(to, name)+q[len(from):]] = moved
					}
				}
			}
		}
		for _, tr := range []*pathTree[int]{tree, tree.clone()} {
			for p, id := range want {
				if got, rest := tr.find(p); got != id || rest != "" {
					t.Fatalf("round %d: %s is %d and %q, wanted %d", round, p, got, rest, id)
				}
				if got, ok := tr.path(id); got != p || !ok {
					t.Fatalf("round %d: %d is at %q, %v, wanted %s", round, id, got, ok, p)
				}
			}
			if n := countBelow(tr, rootNode); n != len(want) {
				t.Fatalf("round %d: %d paths, wanted %d", round, n, len(want))
			}
		}
	}
}

func countBelow(t *pathTree[int], id nodeID) (n int) {
	for _, c := range t.sorted(id) {
		n += 1 + countBelow(t, c)
	}
	return n
}
