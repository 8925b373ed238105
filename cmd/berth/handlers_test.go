package main

import (
	"reflect"
	"testing"
	"time"

	"berth/internal/config"
	"berth/internal/host"
	"berth/internal/spec"
)

// TestEveryKeyOfAHandlerArrives sets each field of a handler alone, and wants it to change what the runtime or the spec
// of its containers is told.
func TestEveryKeyOfAHandlerArrives(t *testing.T) {
	told := func(c config.Handler) any {
		h := &handlers{named: map[string]config.Handler{"h": c}, bases: map[string]*spec.Base{},
			found: []host.Runtime{{Name: "h", Path: c.Path}}}
		r, s, err := h.findSpec("h")
		if err != nil {
			t.Fatal(err)
		}
		return [2]any{r, s}
	}
	words := map[string]string{ // where not every text says something
		"Driver": config.DriverInfra, "Socketcall": config.SocketcallDeny, "StorageWithoutQuota": config.StorageRefuse,
	}
	elsewhere := map[string]bool{"BaseSpec": true} // findHandlers reads the file
	of := reflect.TypeFor[config.Handler]()
	for i := range of.NumField() {
		name := of.Field(i).Name
		if elsewhere[name] {
			continue
		}
		var c config.Handler
		switch f := reflect.ValueOf(&c).Elem().Field(i); f.Kind() {
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Int, reflect.Int64:
			f.SetInt(7)
		case reflect.String:
			f.SetString("/some/text")
			if w := words[name]; w != "" {
				f.SetString(w)
			}
		case reflect.Slice:
			f.Set(reflect.ValueOf([]string{"nofile=1:2"}).Convert(f.Type()))
		default:
			d, ok := f.Addr().Interface().(*config.Duration)
			if !ok {
				t.Fatalf("%s is of a type that this test does not know: %s", name, f.Type())
			}
			d.Duration = time.Minute
		}
		if reflect.DeepEqual(told(c), told(config.Handler{})) {
			t.Errorf("%s reaches neither runtime.Handler nor spec.Handler", name)
		}
	}
}
