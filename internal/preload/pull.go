package preload

import (
	"context"
	"maps"
	"slices"
	"time"

	"berth/internal/image"
	"berth/internal/limit"
)

// mostPulls is how many images are pulled at once, each from another registry: one that does not answer delays no other
// but those who want something of it.
const mostPulls = 4

// puller pulls what lists name. The intake's goroutine alone uses it, and hears of the end of each pull.
type puller struct {
	dir     *Directory
	ledger  *ledger
	ended   chan<- func()
	pulls   map[string]*pull
	hosts   []*registry // from which something is to be pulled
	running int
}

// pull is a name that is to be pulled.
type pull struct {
	lists    []string // that want it
	running  bool
	failures int
	due      time.Time
}

// registry is a host with the names that are to be pulled from it, in their order.
type registry struct {
	host    string
	names   []string
	running bool // one of them is being pulled
}

// next takes the first name whose time has come. It returns when that of another one comes, where there is none; zero
// for never.
func (r *registry) next(pulls map[string]*pull, now time.Time) (name string, at time.Time) {
	for i, one := range r.names {
		due := pulls[one].due
		if !due.After(now) {
			r.names = slices.Delete(r.names, i, i+1)
			return one, time.Time{}
		}
		at = soonest(at, due)
	}
	return "", at
}

// plan decides which names are pulled: those that are missing and, unless they are pinned, were not pulled before. So
// what was removed, by a garbage collection too, is not brought again and again.
func (p *puller) plan() {
	wanted := p.wanted()
	maps.DeleteFunc(p.pulls, func(one string, pull *pull) bool { return wanted[one] == nil && !pull.running })
	for one, lists := range wanted {
		if p.pulls[one] == nil {
			p.pulls[one] = &pull{}
		}
		p.pulls[one].lists = lists
	}
	p.group()
	p.dir.problems.keep(func(k key) bool {
		switch k.of {
		case pulled:
			return p.pulls[k.name] != nil
		case named:
			return p.ledger.Files[k.name] != nil
		}
		return true
	})
}

// wanted is what is to be pulled, with the lists that want it.
func (p *puller) wanted() map[string][]string {
	wanted, names := map[string][]string{}, 0
	for _, name := range slices.Sorted(maps.Keys(p.ledger.Files)) {
		t := p.ledger.Files[name]
		if names += len(t.Names); names > int(limit.PreloadNames.Limit) {
			p.dir.tell(key{name, named}, p.dir.pathOf(name), limit.PreloadNames.Exceeded())
			continue
		}
		p.dir.tell(key{name, named}, "", nil)
		for _, one := range t.Names {
			if _, there := p.dir.Store.Get(one); there {
				p.ledger.notePulled(t, one)
			} else if p.dir.Pin || !t.Pulled[one] {
				wanted[one] = append(wanted[one], name)
			}
		}
	}
	return wanted
}

// group puts the names that are to be pulled under their registries.
func (p *puller) group() {
	p.hosts = nil
	at := map[string]*registry{}
	for _, name := range slices.Sorted(maps.Keys(p.pulls)) {
		host := hostOf(name)
		if at[host] == nil {
			at[host] = &registry{host: host}
			p.hosts = append(p.hosts, at[host])
		}
		if p.pulls[name].running {
			at[host].running = true
		} else {
			at[host].names = append(at[host].names, name)
		}
	}
}

// begin pulls names whose time has come, and returns when that of the next one comes; zero for never.
func (p *puller) begin(ctx context.Context, now time.Time) (next time.Time) {
	var left []*registry
	for i, r := range p.hosts {
		if p.running == mostPulls {
			left = append(left, p.hosts[i:]...)
			break
		}
		if !r.running {
			name, at := r.next(p.pulls, now)
			next = soonest(next, at)
			if name != "" {
				p.beginOne(ctx, name, r)
			}
		}
		if r.running || len(r.names) > 0 {
			left = append(left, r)
		}
	}
	p.hosts = left
	return next
}

func (p *puller) beginOne(ctx context.Context, name string, r *registry) {
	one := p.pulls[name]
	one.running, r.running = true, true
	p.running++
	go func() {
		_, err := p.dir.Store.Pull(ctx, image.PullRequest{Reference: name})
		end(ctx, p.ended, func() { p.pulled(name, one, err) })
	}()
}

// pulled notes how a pull has ended.
func (p *puller) pulled(name string, one *pull, err error) {
	one.running = false
	p.running--
	host := hostOf(name)
	at := p.hosts[slices.IndexFunc(p.hosts, func(r *registry) bool { return r.host == host })]
	at.running = false
	p.dir.tell(key{name, pulled}, p.dir.pathOf(one.lists[0]), err)
	if err != nil {
		one.failures++
		one.due = time.Now().Add(p.dir.pace.retry.After(one.failures))
		at.names = append(at.names, name)
		return
	}
	delete(p.pulls, name)
	for _, list := range one.lists {
		p.ledger.notePulled(p.ledger.Files[list], name)
	}
	p.dir.Log.Info("an image of a list is there", "image", name)
}
