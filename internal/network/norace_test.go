//go:build !race

package network

// slow says that times mean nothing.
const slow = false
