//go:build !cgo

package unpack

const withC = false
