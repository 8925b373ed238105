package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/docker/cli/cli/config"

	"berth/internal/admin"
)

// TestLogin keeps credentials, has pulls take them, each for its own registry, and forgets them.
func TestLogin(t *testing.T) {
	d := startDaemon(t)
	d.pulled = []admin.PullEvent{{Image: "sha256:i", Names: []string{"a:1"}}}
	login := func(in string, args ...string) (string, int) {
		_, errs, code := d.berthIn(t.Context(), strings.NewReader(in), append([]string{"login"}, args...)...)
		return errs, code
	}
	if errs, code := login("", "-u", "me", "-p", "secret", "registry.example:5000"); code != 0 {
		t.Fatal(errs)
	}
	if errs, code := login("hub\n", "-u", "hubber", "--password-stdin"); code != 0 {
		t.Fatal(errs)
	}
	info, err := os.Stat(filepath.Join(config.Dir(), "config.json"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	for ref, want := range map[string]string{
		"registry.example:5000/team/app:1": "me:secret", "nginx": "hubber:hub", "docker.io/library/nginx:1": "hubber:hub",
		"team/app": "hubber:hub", "registry.example/x": ":", "localhost/x": ":",
	} {
		if _, errs, code := d.berth(t, "pull", ref); code != 0 || errs != "" {
			t.Errorf("%s: code %d, %q", ref, code, errs)
		}
		if got := d.pulls[len(d.pulls)-1]; got.Username+":"+got.Password != want {
			t.Errorf("%s: pulled with %+v, want %s", ref, got, want)
		}
	}
	if _, _, code := d.berth(t, "pull", "--creds", "other:one", "nginx"); code != 0 ||
		d.pulls[len(d.pulls)-1].Username != "other" {
		t.Errorf("--creds: %+v", d.pulls[len(d.pulls)-1])
	}
	if _, errs, code := d.berth(t, "logout", "registry.example:5000"); code != 0 {
		t.Error(errs)
	}
	_, _, _ = d.berth(t, "pull", "registry.example:5000/x")
	if got := d.pulls[len(d.pulls)-1]; got.Username != "" {
		t.Errorf("after logout: %+v", got)
	}
	for args, want := range map[string]string{
		"x": "no terminal to ask at", "--password-stdin x": "needs --username", "-u me --password-stdin x": "no password",
	} {
		if errs, code := login("", strings.Fields(args)...); code == 0 || !strings.Contains(errs, want) {
			t.Errorf("login %s: code %d, %q", args, code, errs)
		}
	}
}

// TestBadCredentialFile has a pull go on without what cannot be read, and say so.
func TestBadCredentialFile(t *testing.T) {
	d := startDaemon(t)
	d.pulled = []admin.PullEvent{{Image: "sha256:i", Names: []string{"a:1"}}}
	for name, text := range map[string]string{
		"no JSON": "{", "a program that is not there": `{"credsStore": "no-such-program"}`,
		"an entry that is none": `{"auths": {"registry.example": {"auth": "%%"}}}`,
	} {
		if err := os.WriteFile(filepath.Join(config.Dir(), "config.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, errs, code := d.berth(t, "pull", "registry.example/x"); code != 0 ||
			!strings.Contains(errs, "going on without credentials") {
			t.Errorf("%s: code %d, %q", name, code, errs)
		}
	}
}
