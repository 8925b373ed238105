package main

import (
	"github.com/spf13/cobra"

	"berth/internal/cgroup"
	"berth/internal/systemd"
)

// freeUnitCommand is what berth.service runs when its daemon has ended, however it has.
func freeUnitCommand() *cobra.Command {
	return &cobra.Command{
		Use: "free-unit", Short: "Have berth.service start although helpers of its last daemon run", Hidden: true,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if cgroup.Mode() != cgroup.V2 {
				return nil // elsewhere a cgroup that has some below it takes processes
			}
			return systemd.FreeUnit(cgroup.Unified())
		},
	}
}
