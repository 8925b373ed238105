package cli

import (
	"fmt"
	"runtime"

	"berth/internal/config"
	"berth/internal/image/inflate"
)

// gunzip tells what inflates the layers of images. Nothing of it keeps a pod from running.
func (m machine) gunzip() diagnosis {
	const subject, itself = "gunzip", "the daemon inflates gzip layers by itself"
	setting := m.config.Images.Gunzip
	switch {
	case setting == config.GunzipNever:
		return diagnosis{subject, fine, itself + ", because images.gunzip says so", ""}
	case runtime.NumCPU() < 2:
		return diagnosis{subject, fine, itself + ": there is one processor", ""}
	case setting == config.GunzipAuto:
		setting = ""
	}
	program, _, err := inflate.Find(setting)
	switch {
	case err == nil:
		return diagnosis{subject, fine, fmt.Sprintf("%s inflates large gzip layers", program), ""}
	case setting == "":
		const hint = "; igzip (package isal) would take half of the processor time, and is found by a daemon that starts"
		return diagnosis{subject, fine, itself + ": " + err.Error() + hint, ""}
	}
	const remedy = "mend images.gunzip, or install what it names, and restart the daemon"
	return diagnosis{subject, warning, itself + ": " + err.Error(), remedy}
}
