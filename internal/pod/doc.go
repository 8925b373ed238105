// Package pod is the core of the daemon: pods and their containers, the states they pass through, the plans that make
// and unmake them, and their recovery after a crash.
//
// All that is known of a pod and its containers is one immutable sandbox.Record behind an atomic pointer. Reads take
// that pointer and never wait. A change makes a new Record, writes it to disk and then publishes it; what it may change
// is the state table's to say (package sandbox). Every operation runs in the lane of its pod or container (package op),
// so that two of them never meet, and a retried request joins the one in flight.
//
// Everything on the host that belongs to a pod has a name that derives from its id (sandbox.Layout), and is announced
// by the record before it is made. How it is made is package bundle's: the steps of plans are its methods. So start-up
// is recovery, and the only recovery (recover.go): what is being created is undone, what runs is adopted again, what is
// being removed is removed to the end.
//
// Pods is all of it; pod and container are what lives of one beside its record. podPlan and containerPlan are how they
// are made and unmade, notifier is what plugins are told, Limiter changes what they may use, sweeper removes what no
// record owns. Around them are the rooms that know records alone: bundle, meter, session.
//
// Read pods.go and pod.go first, then run.go, plan.go and stop.go (the life of a pod), container.go, containerplan.go
// and exit.go (that of a container), open.go and recover.go (a start). ledger.go writes records, catalog.go finds them,
// retry.go is what goes on in the background; plugins.go, limiter.go, resources.go, storage.go, damaged.go, events.go
// and situation.go are each one matter of their own.
package pod
