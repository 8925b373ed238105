package preload

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// key is what a problem is about.
type key struct {
	name string // of a file, or of an image
	of   aspect
}

// aspect is when a problem shows.
type aspect int

const (
	whole  aspect = iota // of the directory
	saved                // of the record
	seen                 // of a file, before it is opened
	read                 // of a file that is opened
	named                // of the names of a list, which are too many
	pulled               // of an image that is pulled
)

// problems are what is wrong.
type problems struct {
	mu  sync.Mutex // guards all
	all map[key]Problem
}

// set notes what is wrong with something, nothing where the message is empty. It reports whether that is news.
func (p *problems) set(k key, path, message string) (news bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old, there := p.all[k]
	if message == "" {
		delete(p.all, k)
		return false
	}
	if there && old.Message == message {
		return false
	}
	if !there {
		old.Since = time.Now()
	}
	if p.all == nil {
		p.all = map[key]Problem{}
	}
	p.all[k] = Problem{path, message, old.Since}
	return true
}

// keep forgets what keep is not true of.
func (p *problems) keep(keep func(key) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.all, func(k key, _ Problem) bool { return !keep(k) })
}

// mostTold is how many problems are told one by one.
const mostTold = 50

// list tells what is wrong, by path.
func (p *problems) list() []Problem {
	p.mu.Lock()
	all := slices.Collect(maps.Values(p.all))
	p.mu.Unlock()
	slices.SortFunc(all, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Message, b.Message))
	})
	if len(all) > mostTold {
		text := fmt.Sprintf("%d more problems with the directory of images: see the log", len(all)-mostTold)
		all = append(all[:mostTold], Problem{Message: text, Since: all[mostTold].Since})
	}
	return all
}
