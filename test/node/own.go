package node

// test is what OpenFor needs of a *testing.T.
type test interface {
	Helper()
	Fatal(...any)
	Failed() bool
	Logf(string, ...any)
	Errorf(string, ...any)
	Cleanup(func())
}

// OpenFor makes a node for one test, and checks at the test's end that it left nothing.
func OpenFor(t test, o Options) *Node {
	t.Helper()
	n, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the daemon's log ends with:\n%s", n.DaemonLog(30))
		}
		if err := n.Close(); err != nil {
			t.Errorf("close node: %v", err)
		}
	})
	return n
}
