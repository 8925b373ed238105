// Package docs has the pages that tests follow.
package docs

import _ "embed"

// QuickStart is quickstart.md.
//
//go:embed quickstart.md
var QuickStart string

// Devices is devices.md.
//
//go:embed devices.md
var Devices string
