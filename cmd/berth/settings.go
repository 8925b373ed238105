package main

import (
	"sync/atomic"

	"berth/internal/config"
)

// settings are the settings in force: the configuration that holds now, and the runtime handlers that were found by
// it. A reload replaces both.
type settings struct {
	config   atomic.Pointer[config.Config]
	handlers atomic.Pointer[handlers]
}
