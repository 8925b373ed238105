package cli

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"berth/internal/config"
	"berth/internal/rootfs"
)

// diagnoseStorage tells whether the file system of the writable layers keeps containers to what they may write. Without
// that, the handlers that set a limit are named.
func diagnoseStorage(cfg *config.Config) diagnosis {
	const subject = "storage limits"
	dir := present(cfg.Root)
	err := rootfs.LimitsProjects(dir)
	switch {
	case err == nil:
		return diagnosis{subject, fine, "the file system of " + dir + " keeps containers to theirs", ""}
	case !errors.Is(err, rootfs.ErrNoQuota):
		return diagnosis{subject, warning, err.Error(), "run it as root"}
	}
	var watched, refused []string
	for _, name := range slices.Sorted(maps.Keys(cfg.Runtimes.Handlers)) {
		switch h := cfg.Runtimes.Handlers[name]; {
		case h.StorageWithoutQuota == config.StorageRefuse:
			refused = append(refused, name)
		case h.StorageSize > 0 || h.StorageInodes > 0:
			watched = append(watched, name)
		}
	}
	d := diagnosis{Subject: subject, Result: fine, Text: err.Error() + ": containers that ask for one are only watched"}
	if len(watched) > 0 {
		d.Result, d.Text = warning, d.Text+", and so are all of the runtime handlers "+strings.Join(watched, ", ")
	}
	if len(refused) > 0 {
		d.Result, d.Text = warning, d.Text+"; of the runtime handlers "+strings.Join(refused, ", ")+" they are refused"
	}
	if d.Result == warning {
		d.Remedy = "XFS: mount it with the option prjquota, in /etc/fstab; ext4: unmount it, run tune2fs -O project,quota " +
			"-Q prjquota, and mount it with prjquota"
	}
	return d
}

// diagnoseLogs tells which runtime handlers limit what a container logs. None need do so: whoever rotates logs looks at
// them now and then, and what a container logs until then is on the disk.
func diagnoseLogs(cfg *config.Config) diagnosis {
	const subject = "log limits"
	var limited []string
	for _, name := range slices.Sorted(maps.Keys(cfg.Runtimes.Handlers)) {
		if cfg.Runtimes.Handlers[name].LogRate > 0 {
			limited = append(limited, name)
		}
	}
	text := "no runtime handler limits what a container logs in a second (log_rate): only pods that ask for it are limited"
	if len(limited) > 0 {
		text = "of the runtime handlers " + strings.Join(limited, ", ") + " what a container logs in a second is limited"
	}
	return diagnosis{Subject: subject, Result: fine, Text: text}
}
