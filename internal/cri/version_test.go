package cri

import "testing"

// TestSemantic: releases stay as they are, and what a build without a tag has becomes what a kubelet reads.
func TestSemantic(t *testing.T) {
	for release, want := range map[string]string{
		"v1.2.3": "v1.2.3", "1.2.3": "1.2.3", "v1.2.3-rc1": "v1.2.3-rc1", "v1.2.3-4-gabc-dirty": "v1.2.3-4-gabc-dirty",
		"1e8a932": "0.0.0+1e8a932", "1234567": "0.0.0+1234567", "37631e5-dirty": "0.0.0+37631e5-dirty",
		"unknown": "0.0.0+unknown",
	} {
		if got := semantic(release); got != want {
			t.Errorf("%s is %s, wanted %s", release, got, want)
		}
	}
}
