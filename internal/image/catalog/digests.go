package catalog

import "berth/internal/image/reference"

// maxDigests is how many digests of one repository an image keeps: those that it was last pulled by. A registry can
// give one image any number of them, as when attestations are added to its index each night, and each is a name that
// readers and kubelets are told.
const maxDigests = 8

// digestsOf adds repository digests to those of a record. One that was there already moves to the end.
func digestsOf(old, added []string) []string {
	all := reference.Append(old, added)
	var kept []string
	later := map[string]int{} // how many are still to come, by repository
	for _, name := range all {
		later[reference.RepositoryOf(name)]++
	}
	for _, name := range all {
		repository := reference.RepositoryOf(name)
		if later[repository] <= maxDigests {
			kept = append(kept, name)
		}
		later[repository]--
	}
	return kept
}
