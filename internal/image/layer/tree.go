package layer

import (
	"bytes"
	"hash/maphash"
	"iter"
	"slices"
	"sort"
	"strings"
)

// nodeID identifies a path of a pathTree.
type nodeID uint32

const (
	rootNode nodeID = 0
	noNode          = ^nodeID(0)
)

// pathTree is a set of paths with a value for each. It stores a path as a parent and a name, so a path costs some tens
// of bytes and its last component: thousands of nested directories cost no more than as many siblings. Looking a path
// up takes one step for each of its components.
type pathTree[T any] struct {
	seed  maphash.Seed
	nodes [][]treeNode[T] // in chunks, so that nothing is copied when it grows
	count int
	names []byte
	slots []nodeID // an open hash table; its size is a power of two, and it is at most half full; noNode is a free slot
	used  int      // counts the slots that are not free
	looks *int64   // counts the slots looked at, for tests of what an image can make it cost; clones share it
}

type treeNode[T any] struct {
	value         T
	parent, child nodeID // child is the newest child
	next, prev    nodeID // siblings: next is the next older one
	name          uint32 // the offset of its name in names
	size          uint8  // of the name
	gone          bool   // removed, with everything below
}

const (
	treeChunk = 64
	// maxName is the kernel's limit for the name of a file.
	maxName = 255
	// nodeCost is what a memory budget is charged for a node, beside the bytes of its name.
	nodeCost = 80
)

func newPathTree[T any]() *pathTree[T] {
	t := &pathTree[T]{seed: maphash.MakeSeed(), slots: []nodeID{noNode, noNode, noNode, noNode}, looks: new(int64)}
	t.append(treeNode[T]{parent: noNode, child: noNode, next: noNode, prev: noNode})
	return t
}

func (t *pathTree[T]) append(n treeNode[T]) nodeID {
	if t.count%treeChunk == 0 {
		t.nodes = append(t.nodes, make([]treeNode[T], 0, treeChunk))
	}
	last := &t.nodes[len(t.nodes)-1]
	*last = append(*last, n)
	t.count++
	return nodeID(t.count - 1)
}

func (t *pathTree[T]) node(id nodeID) *treeNode[T] { return &t.nodes[id/treeChunk][id%treeChunk] }

func (t *pathTree[T]) at(id nodeID) *T { return &t.node(id).value }

func (t *pathTree[T]) nameOf(id nodeID) []byte {
	n := t.node(id)
	return t.names[n.name : n.name+uint32(n.size)]
}

// slot returns the slot of the child of that name, or the free slot for it.
func (t *pathTree[T]) slot(parent nodeID, name string) *nodeID {
	h := maphash.String(t.seed, name) ^ uint64(parent)*0x9e3779b97f4a7c15
	h ^= h >> 32
	for mask := uint64(len(t.slots) - 1); ; h++ {
		*t.looks++
		s := &t.slots[h&mask]
		if *s == noNode || t.node(*s).parent == parent && string(t.nameOf(*s)) == name {
			return s
		}
	}
}

// child looks up one name.
func (t *pathTree[T]) child(parent nodeID, name string) (nodeID, bool) {
	if len(name) > maxName {
		return noNode, false
	}
	id := *t.slot(parent, name)
	return id, id != noNode && !t.node(id).gone
}

// add adds a child of that name. It takes the slot of one that is gone. The name may have at most maxName bytes.
func (t *pathTree[T]) add(parent nodeID, name string) nodeID {
	id := t.append(treeNode[T]{child: noNode, name: uint32(len(t.names)), size: uint8(len(name))})
	t.names = append(t.names, name...)
	t.link(id, parent)
	return id
}

// put enters a node into the table. The table grows when it is half full, and leaves out nodes that are gone then.
func (t *pathTree[T]) put(id nodeID) {
	if 2*t.used >= len(t.slots) {
		size := 4
		for size < 4*t.count {
			size *= 2
		}
		t.slots, t.used = make([]nodeID, size), 0
		for i := range t.slots {
			t.slots[i] = noNode
		}
		for old := nodeID(1); int(old) < t.count; old++ {
			if !t.node(old).gone {
				t.fill(old)
			}
		}
	}
	t.fill(id)
}

func (t *pathTree[T]) fill(id nodeID) {
	s := t.slot(t.node(id).parent, string(t.nameOf(id)))
	if *s == noNode {
		t.used++
	}
	*s = id
}

// remove removes a path and everything below it. The nodes stay, marked as gone.
func (t *pathTree[T]) remove(id nodeID) { t.node(id).gone = true }

// link makes a node the newest child of another.
func (t *pathTree[T]) link(id, parent nodeID) {
	n, up := t.node(id), t.node(parent)
	n.parent, n.next, n.prev = parent, up.child, noNode
	if up.child != noNode {
		t.node(up.child).prev = id
	}
	up.child = id
	t.put(id)
}

// move gives a node another parent, which must have no child of its name.
func (t *pathTree[T]) move(id, to nodeID) {
	n := t.node(id)
	if n.next != noNode {
		t.node(n.next).prev = n.prev
	}
	if n.prev != noNode {
		t.node(n.prev).next = n.next
	} else {
		t.node(n.parent).child = n.next
	}
	t.link(id, to)
}

// children ranges over the children of a node. The caller may move them meanwhile.
func (t *pathTree[T]) children(id nodeID) iter.Seq[nodeID] {
	return func(yield func(nodeID) bool) {
		for c := t.node(id).child; c != noNode; {
			n := t.node(c)
			next := n.next
			if !n.gone && !yield(c) {
				return
			}
			c = next
		}
	}
}

// sorted returns the children in the order of their names.
func (t *pathTree[T]) sorted(id nodeID) []nodeID {
	var out []nodeID
	for c := range t.children(id) {
		out = append(out, c)
	}
	sort.Slice(out, func(a, b int) bool { return string(t.nameOf(out[a])) < string(t.nameOf(out[b])) })
	return out
}

// find looks up a clean path. If it is not there, found is the deepest ancestor that is, and rest the path from there.
func (t *pathTree[T]) find(path string) (found nodeID, rest string) {
	found, rest = rootNode, path
	if path == "." {
		return rootNode, ""
	}
	for rest != "" {
		name, more, _ := strings.Cut(rest, "/")
		c, ok := t.child(found, name)
		if !ok {
			break
		}
		found, rest = c, more
	}
	return found, rest
}

// path returns the path of a node; ok is false if the node or one above it is gone.
func (t *pathTree[T]) path(id nodeID) (path string, ok bool) {
	if id == rootNode {
		return ".", true
	}
	size := -1
	for up := id; up != rootNode; up = t.node(up).parent {
		if t.node(up).gone {
			return "", false
		}
		size += int(t.node(up).size) + 1
	}
	out := make([]byte, size)
	for up := id; up != rootNode; up = t.node(up).parent {
		name := t.nameOf(up)
		size -= len(name)
		copy(out[size:], name)
		if size > 0 {
			size--
			out[size] = '/'
		}
	}
	return string(out), true
}

// make looks up a path, and adds its missing components.
func (t *pathTree[T]) make(path string) nodeID {
	id, rest := t.find(path)
	for rest != "" {
		name, more, _ := strings.Cut(rest, "/")
		id, rest = t.add(id, name), more
	}
	return id
}

// clone copies the tree. Its nodes have the same ids.
func (t *pathTree[T]) clone() *pathTree[T] {
	c := &pathTree[T]{
		seed: t.seed, count: t.count, names: bytes.Clone(t.names), slots: slices.Clone(t.slots), used: t.used, looks: t.looks,
	}
	for _, chunk := range t.nodes {
		c.nodes = append(c.nodes, append(make([]treeNode[T], 0, treeChunk), chunk...))
	}
	return c
}
