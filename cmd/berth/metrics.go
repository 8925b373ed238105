package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"berth/internal/admin"
	"berth/internal/image"
	"berth/internal/limit"
	"berth/internal/pod"
	"berth/internal/telemetry"
)

// serveMetrics serves the daemon's own metrics where the configuration says so.
func serveMetrics(n *node) {
	if n.metrics == nil {
		return
	}
	n.metrics.Watch("berth_pods", "Pods by state.", []string{"state"}, func() []telemetry.Count {
		return countPods(n.pods)
	})
	n.metrics.Watch("berth_containers", "Containers by state.", []string{"state"}, func() []telemetry.Count {
		return countContainers(n.pods)
	})
	n.metrics.Watch("berth_problems", "What a person should look at, as berth pods and berth check tell: records that "+
		"cannot be read, undos that do not succeed, helpers that hang in the kernel.",
		nil, func() []telemetry.Count { return []telemetry.Count{{Value: float64(len(problems(n)))}} })
	n.metrics.Watch("berth_container_oom_kills_total",
		"Containers that ended because the kernel killed them for memory.", nil,
		func() []telemetry.Count { return []telemetry.Count{{Value: float64(pod.OOMKills(n.pods))}} })
	watchEvents(n.metrics, n.pods)
	n.metrics.Watch("berth_image_pull_bytes_total", "Bytes of layers that were fetched from registries, compressed.",
		nil, func() []telemetry.Count { return []telemetry.Count{{Value: float64(image.Fetched(n.images))}} })
	n.metrics.Watch("berth_monitors", "Monitors that the daemon is connected to, and those of them that do not answer.",
		[]string{"state"}, func() []telemetry.Count {
			m := n.driver.Monitors()
			return counted(map[string]int{"joined": m.Joined, "silent": len(m.Silent)})
		})
	n.metrics.Watch("berth_monitors_replaced_total",
		"Monitors that were killed and replaced because they did not answer: silent, for long; stop, when a stop needed it.",
		[]string{"why"}, func() []telemetry.Count { return counted(n.driver.Monitors().Replaced) })
	n.metrics.Watch("berth_limit_used", "What is used of the limits that all share.", []string{"limit"},
		func() []telemetry.Count { return countUsed(budgets(n)) })
	n.metrics.Watch("berth_clients_refused_total",
		"Calls and connections that were refused because their client held too much, by limit.", []string{"limit"},
		func() []telemetry.Count { return counted(n.callers.Refusals()) })
	n.metrics.Watch("berth_storage_limit_containers", "Containers that have written all that they may to their roots.",
		nil, func() []telemetry.Count {
			full, _ := n.pods.Meter.Storage.Full()
			return []telemetry.Count{{Value: float64(len(full))}}
		})
	n.metrics.Watch("berth_storage_limit_reached_total", "How often a container has reached a limit of its root.", nil,
		func() []telemetry.Count {
			_, reached := n.pods.Meter.Storage.Full()
			return []telemetry.Count{{Value: float64(reached)}}
		})
	watchMemory(n.metrics, n.memory)
	n.metrics.Watch("berth_log_dropped_bytes_total",
		"Bytes that containers have written and that are not in their logs because these are limited.", nil,
		func() []telemetry.Count { return []telemetry.Count{{Value: float64(n.pods.Meter.Logs.Sum().Bytes)}} })
	n.metrics.Watch("berth_log_dropped_lines_total", "The same, in lines.", nil,
		func() []telemetry.Count { return []telemetry.Count{{Value: float64(n.pods.Meter.Logs.Sum().Lines)}} })
	n.metrics.Watch("berth_own_log_lost_lines_total",
		"Lines of the daemon's own log that were lost because what reads its standard error did not take them.", nil,
		func() []telemetry.Count {
			return []telemetry.Count{{Value: float64(n.logWriter.State().Lost)}}
		})
	n.metrics.Watch("berth_images_bytes", "Room that the images take.", nil, func() []telemetry.Count {
		bytes, _, _ := n.images.Usage()
		return []telemetry.Count{{Value: float64(bytes)}}
	})
	n.metricsPort.serve(n.background, n.metrics, n.cfg.Metrics.Address, n.log)
}

// metricsPort is where the metrics are served. An address at which the daemon cannot listen is tried again: its port is
// somebody else's, which is no reason to have no pods, or its interface is not there yet. The zero value serves
// nothing.
type metricsPort struct {
	retry time.Duration // how long after a failure the address is tried again; 0 is metricsRetry

	mu      sync.Mutex // guards problem
	problem []admin.Problem
}

const metricsRetry = 10 * time.Second

// serve serves metrics at an address, at once or in the background, until the daemon ends.
func (p *metricsPort) serve(b *background, m *telemetry.Metrics, address string, log *slog.Logger) {
	wait, err := p.listen(b.ctx, m, address, log)
	b.run(func(ctx context.Context) {
		for err != nil {
			select {
			case <-ctx.Done():
				return
			case <-time.After(cmp.Or(p.retry, metricsRetry)):
				wait, err = p.listen(ctx, m, address, log)
			}
		}
		wait()
	})
}

func (p *metricsPort) listen(
	ctx context.Context, m *telemetry.Metrics, address string, log *slog.Logger,
) (wait func(), err error) {
	at, wait, err := m.Serve(ctx, address, log)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err == nil:
		log.Info("metrics are served", "address", at.String())
		p.problem = nil
	case p.problem == nil:
		what := fmt.Sprintf("%v: metrics.address says so; it is tried again and again", err)
		log.Error("metrics are not served", "address", address, "error", err)
		p.problem = []admin.Problem{{Message: what, Since: time.Now()}}
	}
	return wait, err
}

// problems are why the metrics are not served.
func (p *metricsPort) problems() []admin.Problem {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.problem
}

// watchEvents counts what CRI's GetContainerEvents and `berth events` are sent.
func watchEvents(m *telemetry.Metrics, pods *pod.Pods) {
	m.Watch("berth_event_watchers", "Clients that watch events.", nil, func() []telemetry.Count {
		return []telemetry.Count{{Value: float64(pods.Feed.EventCounts().Watchers)}}
	})
	m.Watch("berth_event_watchers_dropped_total", "Clients that were dropped because they did not read their events.",
		nil, func() []telemetry.Count { return []telemetry.Count{{Value: float64(pods.Feed.EventCounts().Dropped)}} })
	m.Watch("berth_events_sent_total", "Events that were sent, to each client that watches, by kind.", []string{"kind"},
		func() []telemetry.Count { return counted(pod.EventTotals(pods).Sent) })
	m.Watch("berth_events_lost_total", "Events that clients had not read when they were dropped.", nil,
		func() []telemetry.Count { return []telemetry.Count{{Value: float64(pod.EventTotals(pods).Lost)}} })
}

func countPods(pods *pod.Pods) []telemetry.Count {
	states := map[string]int{}
	for _, r := range pods.Catalog.List() {
		states[string(r.State)]++
	}
	return counted(states)
}

func countContainers(pods *pod.Pods) []telemetry.Count {
	states := map[string]int{}
	for _, r := range pods.Catalog.List() {
		for _, c := range r.Containers {
			states[string(c.State)]++
		}
	}
	return counted(states)
}

func counted(by map[string]int) []telemetry.Count {
	var list []telemetry.Count
	for label, n := range by {
		list = append(list, telemetry.Count{Labels: []string{label}, Value: float64(n)})
	}
	return list
}

// countUsed is what is used of the limits that all share.
func countUsed(budgets []limit.Budget) (all []telemetry.Count) {
	for _, b := range budgets {
		all = append(all, telemetry.Count{Labels: []string{b.Name}, Value: float64(b.Used)})
	}
	return all
}
