package image

import "strings"

// maxDigests is how many digests of one repository an image keeps: those that it was last pulled by. A registry can
// give one image any number of them, as when attestations are added to its index each night, and each is a name that
// readers and kubelets are told.
const maxDigests = 8

// digestsOf adds repository digests to those of a record. One that was there already moves to the end.
func digestsOf(old, added []string) []string {
	all := appended(old, added)
	var kept []string
	later := map[string]int{} // how many are still to come, by repository
	for _, name := range all {
		later[repositoryOf(name)]++
	}
	for _, name := range all {
		repository := repositoryOf(name)
		if later[repository] <= maxDigests {
			kept = append(kept, name)
		}
		later[repository]--
	}
	return kept
}

// repositoryOf is a whole reference without its tag and digest.
func repositoryOf(reference string) string {
	name, _, _ := strings.Cut(reference, "@")
	if colon := strings.LastIndexByte(name, ':'); colon > strings.LastIndexByte(name, '/') {
		return name[:colon]
	}
	return name
}
