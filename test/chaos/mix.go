package chaos

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// action is what is done to whom.
type action struct {
	verb  string // kill, stop, freeze, fill, slow or jump
	class class  // of the process that is killed or stopped
	disk  string // that is frozen, filled or slowed: records or logs
}

func (a action) String() string { return a.verb + " " + string(a.class) + a.disk }

// weighted is an action, and how often it is chosen.
type weighted struct {
	action
	weight int
}

// mix is what a run chooses its strikes from.
type mix []weighted

func kills(c class, weight int) weighted { return weighted{action{verb: "kill", class: c}, weight} }
func stops(c class, weight int) weighted { return weighted{action{verb: "stop", class: c}, weight} }

// mixed is all that can be done to processes.
var mixed = mix{
	kills(daemon, 25), stops(daemon, 6), kills(monitor, 15), stops(monitor, 5), kills(runtime, 20), stops(runtime, 4),
	kills(plugin, 15), stops(plugin, 4), kills(unpacker, 8), stops(unpacker, 3), kills(registry, 4), stops(registry, 2),
}

var mixes = map[string]mix{
	"none":   {}, // the load alone: what is lost in it was not lost to a strike
	"daemon": {kills(daemon, 1)},
	"mixed":  mixed,
	"disks": {
		kills(daemon, 30), kills(monitor, 10),
		{action{verb: "freeze", disk: "records"}, 20}, {action{verb: "freeze", disk: "logs"}, 10},
		{action{verb: "fill", disk: "records"}, 20}, {action{verb: "fill", disk: "logs"}, 10},
		{action{verb: "slow", disk: "logs"}, 10},
	},
	// The clock is that of the machine, so this is for one that is nobody's.
	"clock": append(slices.Clone(mixed), weighted{action{verb: "jump"}, 25}),
}

// mixOf returns the mix of a name, or that of words separated by commas: a class, whose processes are killed, or a verb
// and whom it is done to.
func mixOf(name string) (mix, error) {
	if m, ok := mixes[name]; ok {
		return m, nil
	}
	var m mix
	for word := range strings.SplitSeq(name, ",") {
		verb, what, ok := strings.Cut(word, ":")
		if !ok {
			verb, what = "kill", word
		}
		one, ok := actionOf(verb, what)
		if !ok {
			return nil, fmt.Errorf("%q is no mix (%s), no class of processes that are killed or stopped, as stop:monitor, "+
				"and no disk that is frozen, filled or slow, as freeze:logs",
				name, strings.Join(slices.Sorted(maps.Keys(mixes)), ", "))
		}
		m = append(m, weighted{one, 1})
	}
	return m, nil
}

// actionOf is what can be done to processes of a class, or to a disk.
func actionOf(verb, what string) (action, bool) {
	c := class(what)
	switch verb {
	case "kill", "stop":
		known := slices.Contains([]class{daemon, monitor, unpacker, runtime, plugin, registry}, c)
		return action{verb: verb, class: c}, known
	case "freeze", "fill":
		return action{verb: verb, disk: what}, what == "records" || what == "logs"
	case "slow":
		return action{verb: verb, disk: what}, what == "logs"
	}
	return action{}, false
}

// choose takes an action by its weight; n is below the sum of all.
func (m mix) choose(n int) action {
	for _, w := range m {
		if n -= w.weight; n < 0 {
			return w.action
		}
	}
	return m[len(m)-1].action
}

func (m mix) sum() (n int) {
	for _, w := range m {
		n += w.weight
	}
	return n
}

// disks says whether the stage needs disks of its own.
func (m mix) disks() bool {
	return slices.ContainsFunc(m, func(w weighted) bool { return w.disk != "" })
}
