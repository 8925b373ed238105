// Package pod is the core of the daemon: pods and their containers, the states they pass through, the plans that make
// and unmake them, and their recovery after a crash.
//
// All that is known of a pod and its containers is one immutable sandbox.Record behind an atomic pointer. Reads take
// that pointer and never wait. A change makes a new Record, writes it to disk and then publishes it; the table of
// package sandbox says which state may follow which. Every operation runs in the lane of its pod or container (package
// op), so that two of them never meet, and a retried request joins the one in flight.
//
// Everything on the host that belongs to a pod has a name that derives from its id (sandbox.Layout), and is announced
// by the record before it is made. Package bundle makes it. Every start is a recovery, and there is no other
// (recover.go): what was being created is undone, what runs is adopted, and a removal that had begun is finished.
//
// Pods holds every pod; pod and container have what the daemon needs of one beside its record. podPlan and
// containerPlan make and remove them, notifier tells plugins, Limiter changes limits, sweeper removes what no record
// owns. The packages around this one know only records: bundle, meter, session.
//
// Read pods.go and pod.go first, then run.go, plan.go and stop.go (the life of a pod), container.go, containerplan.go
// and exit.go (that of a container), open.go and recover.go (a start). ledger.go writes records, catalog.go finds them,
// retry.go has the work in the background; plugins.go, limiter.go, resources.go, storage.go, damaged.go, events.go and
// situation.go each have one subject.
package pod
