package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/config"
	"berth/internal/fail"
	"berth/internal/host"
	"berth/internal/spec"
	"berth/internal/supervisor"
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

// TestBadBaseSpec has a daemon start though the base spec of its default handler is gone or says what nobody knows. The
// handler makes nothing new, its pods can be stopped, and other handlers are as ever. A reload refuses it, and takes it
// when it is mended. What it keeps from containers then is in the log.
func TestBadBaseSpec(t *testing.T) {
	dir := t.TempDir()
	base, path := filepath.Join(dir, "base.json"), filepath.Join(dir, "config.toml")
	put := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(path, "[runtimes]\ndefault = \"bad\"\n[runtimes.bad]\npath = \"/bin/true\"\nbase_spec = \""+base+"\"\n"+
		"[runtimes.good]\npath = \"/bin/true\"\n")
	flags := config.Flags{Path: path, PathSet: true}
	cfg, err := config.Load(flags)
	if err != nil {
		t.Fatal(err)
	}
	trials := &runtimeTrials{log: slog.New(slog.DiscardHandler)}
	for text, want := range map[string]string{"": "no such file", `{"x":1}`: "unknown field", "{": "unexpected EOF"} {
		if text != "" {
			put(base, text)
		}
		h, err := findHandlers(t.Context(), trials, cfg)
		if err != nil {
			t.Fatalf("%q: the daemon does not start: %v", text, err)
		}
		for _, name := range []string{"", "bad"} {
			if _, err := h.find(name); err != nil {
				t.Errorf("%q: the pods of %q cannot be stopped: %v", text, name, err)
			}
			_, _, err := h.findSpec(name)
			if !fail.Is(err, errdefs.ErrFailedPrecondition) || !strings.Contains(err.Error(), want) ||
				!strings.Contains(err.Error(), path+":5: runtimes.bad.base_spec: "+base) {
				t.Errorf("%q: handler %q: %v", text, name, err)
			}
		}
		if _, _, err := h.findSpec("good"); err != nil {
			t.Errorf("%q: another handler: %v", text, err)
		}
		if p := h.problems(); len(p) != 1 || !strings.Contains(p[0].Message, want) || p[0].Since.IsZero() {
			t.Errorf("%q: problems: %+v", text, p)
		}
		_ = os.Remove(base)
	}
	h, err := findHandlers(t.Context(), trials, cfg)
	if err != nil {
		t.Fatal(err)
	}
	r := &reloader{flags: flags, settings: &settings{}, trials: trials, level: &slog.LevelVar{}, log: trials.log,
		supervisor: supervisor.FromEnvironment(), reconfigure: func(*config.Config) error { return nil }}
	r.settings.config.Store(cfg)
	r.settings.handlers.Store(h)
	if _, err := r.reload(t.Context()); err == nil || !strings.Contains(err.Error(), "runtimes.bad.base_spec") {
		t.Errorf("a reload: %v", err)
	}
	var log strings.Builder
	trials.log = slog.New(slog.NewTextHandler(&log, nil))
	put(base, `{"process":{"env":["A=b"],"capabilities":{"bounding":["CAP_KILL"]}}}`)
	if _, err := r.reload(t.Context()); err != nil {
		t.Errorf("a reload with the file mended: %v", err)
	}
	if _, s, err := r.settings.handlers.Load().findSpec(""); err != nil || s.Base == nil {
		t.Errorf("the handler afterwards: %v", err)
	}
	for _, want := range []string{"runtimes.bad.base_spec", base, `"CAP_CHOWN CAP_DAC_OVERRIDE `} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("fewer than the usual capabilities: no %s in the log: %s", want, log.String())
		}
	}
}
