// Package fault names the places where a test may make Berth fail.
//
// A point is passed by calling At with its name. A normal build compiles At to nothing. A build with the tag
// berth_fault reads two variables of the environment, once, at the first point it passes:
//
//	BERTH_FAULT        name=action[#n][,name=action…]  what happens at the n-th pass (1 when absent) of a point,
//	                                               which may be named again for another pass
//	BERTH_FAULT_TRACE  a file to which the name of every point passed is appended, one a line
//
// The actions are `kill` (SIGKILL to this process, so that nothing is cleaned up), `error` or `error:text` (At returns
// an error), and `sleep:duration`. The crash matrix learns the points from a trace, so a new point is covered the day
// it is written.
package fault
