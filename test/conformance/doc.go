// Package conformance runs the node tests of Kubernetes (e2e_node.test) against a daemon built from this working
// tree, and compares how each spec ended with a list of what is known.
//
// The suite starts an API server and a kubelet of its own. They, the daemon and all pods live on a site (site.go): a
// node of namespaces on this machine (ground.go), or a virtual machine in which the package is installed
// (machine_test.go). There are stand-ins for the images that the specs name (images.go). Nothing is fetched in a run:
// the programs are built before (programs.go), and kept.
package conformance
