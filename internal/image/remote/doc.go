// Package remote reads image content from registries: it resolves a reference and streams manifests and blobs.
//
// A Client holds what all pulls share, a Repository is one reference with one caller's credentials, a Blob is one piece
// of content on its way. Which hosts serve a repository is configured as containerd documents it
// (certs.d/<host>/hosts.toml); they are asked in that order, and a host that is down, lacks the content, refuses,
// breaks off, stalls or serves other content gives way to the next, at the byte where it stopped.
//
// What a Blob delivers is not proven: its reader digests it anyway. A reader that finds a digest mismatch calls
// ReportMismatch and opens the content again; the host that served it is not asked for that content again.
//
// The types to know: a mirrorSet tries the mirrors of a reference for one request, a mirrorState is what the request
// knows of one of them, and a parallelismProbe finds out whether more connections to a host bring more bytes.
//
// The files, in the order in which they read: client, hosts, hosts_keys, auth, resolve, mirrors, request, away, fault,
// blob, stream, ahead, parallelism, buffers, lost, foreign, clock, errors.
//
// Credentials go to the host they are for, over the scheme and port it is configured with, and to the token server that
// host names. No redirect takes them along; a registry that it leads to gets a token without credentials.
package remote
