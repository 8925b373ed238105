//go:build race

package runtime

func init() { monitorFlags = append(monitorFlags, "-race") }
