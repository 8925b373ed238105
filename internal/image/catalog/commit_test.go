package catalog

import (
	"fmt"
	"slices"
	"testing"
)

func TestChoicesAreFew(t *testing.T) {
	var all []string
	for i := range 3 * maxChoices {
		all = choicesOf(all, []string{fmt.Sprint(i)})
		all = choicesOf(all, []string{fmt.Sprint(i)})
	}
	if len(all) != maxChoices || all[maxChoices-1] != fmt.Sprint(3*maxChoices-1) {
		t.Errorf("kept %v", all)
	}
}

func TestDigestsOf(t *testing.T) {
	var all []string
	for i := range 3 * maxDigests {
		all = digestsOf(all, []string{fmt.Sprint("a@", i)})
		if i == 0 {
			all = digestsOf(all, []string{"b@first"})
		}
	}
	if none := digestsOf(nil, nil); none != nil {
		t.Errorf("%v of nothing: a record that says so would be written anew", none)
	}
	if len(all) != maxDigests+1 || all[0] != "b@first" || all[1] != fmt.Sprint("a@", 2*maxDigests) {
		t.Errorf("kept %v", all)
	}
	again := digestsOf(all, []string{"b@first"})
	if len(again) != len(all) || again[len(again)-1] != "b@first" {
		t.Errorf("pulled once more: %v", again)
	}
	if same := digestsOf(again, []string{"b@first"}); !slices.Equal(same, again) {
		t.Errorf("%v became %v: a pull that changes nothing would write", again, same)
	}
}
