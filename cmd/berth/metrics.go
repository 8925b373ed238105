package main

import (
	"context"
	"fmt"

	"berth/internal/image"
	"berth/internal/limit"
	"berth/internal/pod"
	"berth/internal/telemetry"
)

// serveMetrics serves the daemon's own metrics where the configuration says so.
func serveMetrics(ctx context.Context, n *node) error {
	if n.metrics == nil {
		return nil
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
	at, wait, err := n.metrics.Serve(ctx, n.cfg.Metrics.Address, n.log)
	if err != nil {
		return fmt.Errorf("%w: metrics.address says so", err)
	}
	n.log.Info("metrics are served", "address", at.String())
	n.background.running.Go(wait)
	return nil
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
