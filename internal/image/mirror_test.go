package image

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

// TestLyingMirror has a mirror that serves something else for each part of an image in turn: the registry's is taken.
// When the registry lies as well, nothing is.
func TestLyingMirror(t *testing.T) {
	t.Parallel()
	good := gz(t, file("a", strings.Repeat("hello", 1000)), file("b", string(bytes.Repeat([]byte{7}, 100_000))))
	img := imageOf(t, good)
	layer, _ := good.Digest()
	config, _ := img.ConfigName()
	manifest, _ := img.Digest()
	flip := func(key string) func(*liar) {
		return func(l *liar) {
			b := bytes.Clone(l.blobs[key])
			b[len(b)/3] ^= 0x10
			l.blobs[key] = b
		}
	}
	hostile := gz(t, file("../../evil", "x"))
	for name, change := range map[string]func(*liar){
		"manifest":     flip(manifest.String()),
		"config":       flip(config.String()),
		"layer":        flip(layer.String()),
		"layer, short": func(l *liar) { l.blobs[layer.String()] = good.blob[:50] },
		"layer, hostile": func(l *liar) {
			l.blobs[layer.String()] = append(bytes.Clone(hostile.blob), make([]byte, len(good.blob)-len(hostile.blob))...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			mirror, origin, worse := startLiar(t, img, change), startLiar(t, img, nil), startLiar(t, img, change)
			s := openMirrored(t, "honest.test", mirror, origin)
			if got := content(t, s, pull(t, s, "honest.test/x:v1"), "a"); got != strings.Repeat("hello", 1000) {
				t.Errorf("a holds %d bytes", len(got))
			}
			sound(t, s)
			s = openMirrored(t, "false.test", mirror, worse)
			refused(t, s, PullRequest{Reference: "false.test/x:v1"}, errdefs.ErrDataLoss, "promised")
		})
	}
}

// TestStaleMirror names a manifest that is not to be had any more: the registry is asked what the tag names.
func TestStaleMirror(t *testing.T) {
	old, now := imageOf(t, gz(t, file("a", "old"))), imageOf(t, gz(t, file("a", "new")))
	gone, _ := old.Digest()
	mirror := startLiar(t, old, func(l *liar) { delete(l.blobs, gone.String()) })
	origin := startLiar(t, now, nil)
	s := openMirrored(t, "registry.test", mirror, origin)
	if got := content(t, s, pull(t, s, "registry.test/x:v1"), "a"); got != "new" {
		t.Errorf("a holds %q", got)
	}
	sound(t, s)
}

// openMirrored opens a store for which one registry stands before another.
func openMirrored(t *testing.T, name string, mirror, origin *liar) *Store {
	t.Helper()
	certs := t.TempDir()
	if err := os.MkdirAll(filepath.Join(certs, name), 0o700); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("server = \"http://%s\"\n[host.\"http://%s\"]\n", origin.host, mirror.host)
	if err := os.WriteFile(filepath.Join(certs, name, "hosts.toml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return open(t, t.TempDir(), func(c *Config) { c.RegistryConfigDir, c.StallTimeout = certs, time.Minute })
}
