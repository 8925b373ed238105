package config

import (
	"fmt"
	"path/filepath"
)

// What images.gunzip may say beside a path.
const (
	GunzipAuto  = "auto"  // igzip where it is on the path
	GunzipNever = "never" // the daemon inflates by itself
)

var gunzip = text.with(`"auto", "never" or an absolute path`, func(v string) string {
	if v == GunzipAuto || v == GunzipNever || filepath.IsAbs(v) {
		return ""
	}
	return fmt.Sprintf("%q is none of auto, never and an absolute path", v)
})
