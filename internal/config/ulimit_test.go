package config

import (
	"math"
	"testing"
)

func TestParseUlimit(t *testing.T) {
	for text, want := range map[string]Ulimit{
		"nofile=1024:524288":            {"nofile", 1024, 524288},
		"memlock=unlimited":             {"memlock", math.MaxUint64, math.MaxUint64},
		"core=0":                        {"core", 0, 0},
		"stack=8388608:unlimited":       {"stack", 8388608, math.MaxUint64},
		"rss=18446744073709551615":      {"rss", math.MaxUint64, math.MaxUint64},
		"nproc=unlimited:unlimited":     {"nproc", math.MaxUint64, math.MaxUint64},
		"rttime=1:18446744073709551615": {"rttime", 1, math.MaxUint64},
	} {
		if got, err := ParseUlimit(text); err != nil || got != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{
		"", "nofile", "=1", "nofile=", "nofile=1:", "nofile=:1", "nofile=2:1", "nofile=-1", "nofile=1:2:3", "NOFILE=1",
		"RLIMIT_NOFILE=1", "nofile = 1", "nofile=unlimited:1", "nofile=18446744073709551616", "files=1",
	} {
		if got, err := ParseUlimit(text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
	for _, bad := range [][]string{{"nofile=1", "nofile=2"}, {"x"}} {
		if checkUlimits(bad) == "" {
			t.Errorf("%q is allowed", bad)
		}
	}
}
