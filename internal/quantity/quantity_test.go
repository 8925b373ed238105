package quantity

import "testing"

func TestParse(t *testing.T) {
	for s, want := range map[string]uint64{
		"10M": 1e7, "1.5Gi": 1610612736, "1e6": 1e6, "12E": 12e18, "100": 100, "1500m": 2,
		"1k": 1000, "2.5E3": 2500, "0.1k": 100,
	} {
		if got, err := Parse(s); err != nil || got != want {
			t.Errorf("%s: %d, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "M", "-1M", "1/2", "0x10", "1_000", "10MB", "1e999999999", "99E", "1.2.3", "Inf"} {
		if got, err := Parse(s); err == nil {
			t.Errorf("%q is %d", s, got)
		}
	}
}
