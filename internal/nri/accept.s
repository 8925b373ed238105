// This file is empty: it lets accept.go declare a function without a body, which go:linkname takes from elsewhere.
