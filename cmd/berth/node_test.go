package main

import (
	"reflect"
	"strings"
	"testing"

	"berth/internal/config"
)

// TestImageLimits wants each limit of the configuration to arrive in the field of its name in the image store's.
func TestImageLimits(t *testing.T) {
	cfg := config.Default()
	want := map[string]int64{}
	for name, value := range maxima(&cfg.Images) {
		n := int64(len(want) + 100)
		value.SetInt(n)
		if name == "MaxConcurrentDownloads" {
			name = "MaxParallelLayers"
		}
		want[name] = n
	}
	got := map[string]int64{}
	store := newNode(cfg).imageConfig(cfg)
	for name, value := range maxima(&store) {
		got[name] = value.Int()
	}
	if !reflect.DeepEqual(got, want) || len(want) != 11 {
		t.Errorf("the store gets %v, configured are %v", got, want)
	}
}

// maxima are the fields of a struct that are called Max.
func maxima(of any) map[string]reflect.Value {
	found := map[string]reflect.Value{}
	v := reflect.ValueOf(of).Elem()
	for i := range v.NumField() {
		if name := v.Type().Field(i).Name; strings.HasPrefix(name, "Max") {
			found[name] = v.Field(i)
		}
	}
	return found
}
