//go:build berth_manual

package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// addManual adds the command that writes the manual pages. Only the build of a package has it, and what it takes.
func addManual(root *cobra.Command) {
	root.AddCommand(&cobra.Command{
		Use: "manual DIR", Short: "Write the manual pages", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			root.DisableAutoGenTag = true
			return doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "Berth " + version, Manual: "Berth"}, args[0])
		},
	})
}
