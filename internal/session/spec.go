package session

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/sandbox"
	"berth/internal/spec"
)

// RuntimeSpec returns the spec that the container's runtime was given, with the limits in force, while the container
// has a process.
func (s *Sessions) RuntimeSpec(id sandbox.ID) (*specs.Spec, error) {
	r, c, err := s.Pods.Container(id)
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(s.Layout.BundleSpec(r.ID, id))
	if err != nil {
		return nil, fmt.Errorf("container %s: its runtime spec: %w", id, err)
	}
	var sp specs.Spec
	if err := json.Unmarshal(data, &sp); err != nil {
		return nil, fmt.Errorf("container %s: its runtime spec: %w", id, err)
	}
	if changed := c.Resources.Get(); changed != nil && sp.Linux != nil && sp.Linux.Resources != nil {
		// Earlier releases recorded limits of plugins that are refused here. The spec that was given has them.
		if now, _, err := spec.Resources(changed, s.Host); err == nil {
			overlay(sp.Linux.Resources, now)
		}
	}
	return &sp, nil
}

// overlay puts the limits in force over those that a runtime was given. What they do not mention stays.
func overlay(given, now *specs.LinuxResources) {
	if now.CPU != nil {
		if given.CPU == nil {
			given.CPU = &specs.LinuxCPU{}
		}
		over(&given.CPU.Shares, now.CPU.Shares)
		over(&given.CPU.Quota, now.CPU.Quota)
		over(&given.CPU.Period, now.CPU.Period)
		if now.CPU.Cpus != "" {
			given.CPU.Cpus = now.CPU.Cpus
		}
		if now.CPU.Mems != "" {
			given.CPU.Mems = now.CPU.Mems
		}
	}
	if now.Memory != nil {
		if given.Memory == nil {
			given.Memory = &specs.LinuxMemory{}
		}
		over(&given.Memory.Limit, now.Memory.Limit)
		over(&given.Memory.Swap, now.Memory.Swap)
	}
	over(&given.Pids, now.Pids)
	changed := map[string]bool{}
	for _, h := range now.HugepageLimits {
		changed[h.Pagesize] = true
	}
	given.HugepageLimits = slices.DeleteFunc(given.HugepageLimits, func(h specs.LinuxHugepageLimit) bool {
		return changed[h.Pagesize]
	})
	given.HugepageLimits = append(given.HugepageLimits, now.HugepageLimits...)
	if given.Unified == nil {
		given.Unified = now.Unified
	} else {
		maps.Copy(given.Unified, now.Unified)
	}
}

func over[T any](to **T, from *T) {
	if from != nil {
		*to = from
	}
}
