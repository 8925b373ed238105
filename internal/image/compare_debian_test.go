package image

import (
	"testing"

	"berth/test/fixture"
)

// TestCompareDebian compares real images: a minimal Debian, Python and nginx, of several layers each.
func TestCompareDebian(t *testing.T) {
	var cases []comparison
	for name, shows := range map[string]map[string]string{
		fixture.DebianBase: {"bin": "symlink usr/bin", "etc/hostname": "file debian\n", "dev/null": "char 1:3"},
		fixture.DebianPython: {"etc/motd": "nothing", "srv/new": "file new\n", "srv/app": "symlink ../app",
			"var/lib/apt": "file a file now\n"},
		fixture.DebianNginx: {"var/www/html/index.html": "file " + fixture.DebianPage,
			"etc/nginx/sites-enabled/default": "nothing"},
	} {
		img, err := fixture.DebianImage(name)
		if err != nil {
			fixture.Unavailable(t, err)
		}
		cases = append(cases, comparison{name: name, image: img, shows: shows})
	}
	compareAll(t, cases)
}
