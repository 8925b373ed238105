package main

import (
	"fmt"
	"slices"

	"berth/internal/admin"
	"berth/internal/config"
	"berth/internal/image"
	"berth/internal/limit"
)

// problems are what a person should look at.
func problems(n *node) (all []admin.Problem) {
	for _, p := range n.pods.Problems() {
		all = append(all, admin.Problem{Pod: string(p.Pod), Message: p.What, Since: p.Since})
	}
	for _, s := range n.driver.Monitors().Silent {
		all = append(all, admin.Problem{Pod: s.Pod, Message: s.What, Since: s.Since})
	}
	all = append(all, n.settings.handlers.Load().problems()...)
	all = append(all, n.preload.problems()...)
	all = append(all, n.metricsPort.problems()...)
	all = append(all, n.confinement.problems()...)
	if s := n.memory.Status(); s.Problem != "" {
		all = append(all, admin.Problem{Message: s.Problem, Since: s.Since})
	}
	for _, s := range n.groups.helpers.Stuck() {
		text := fmt.Sprintf("helper %s: %v; what it was run for is refused until then", s.Name, s.StuckError)
		all = append(all, admin.Problem{Message: text, Since: s.Since})
	}
	return append(all, logProblem(n.logWriter)...)
}

// budgets returns the limits that all share, with what is used of them.
func budgets(n *node) []limit.Budget {
	own := []limit.Budget{memoryBudget(n.memory)}
	return slices.Concat(image.Budgets(n.images), n.streams.Budgets(), n.callers.Budgets(), own)
}

// limitsOf are the same for the command line.
func limitsOf(n *node) []admin.Limit {
	all := []admin.Limit{}
	for _, b := range budgets(n) {
		all = append(all, admin.Limit{Name: b.Name, Used: b.Used, Limit: b.Limit})
	}
	return all
}

// nriOf is how the Node Resource Interface is.
func nriOf(n *node) *admin.NRI {
	switch {
	case n.plugins != nil:
		s := n.plugins.Status()
		return &admin.NRI{
			On: s.On, Failed: s.Failed, Socket: s.Socket, Plugins: s.Plugins, Names: s.Names, Problems: s.Problems,
		}
	case n.cfg.NRI.Enable != nil:
		return &admin.NRI{Off: "nri.enable is false"}
	}
	root := config.Default().Root
	return &admin.NRI{Off: "it is on by itself for the root " + root + " only, and nri.enable is not set"}
}
