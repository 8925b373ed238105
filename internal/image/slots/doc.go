// Package slots shares the slots for downloads fairly among the registry hosts that they come from.
//
// A Transfer is one download. It needs a slot to begin, and to receive more than Floor bytes a second. One whose host
// sends less, or nothing, as while a connection is made or a Retry-After runs, keeps its slot only as long as no other
// layer wants it, and needs none: however many hosts send slowly, they delay no other host. No slot is kept free for
// that, because one can be taken away at any time: who loses it goes on at the Floor.
//
// A transfer that wants a slot where none is free takes it from the slowest of those that
//
//   - starve: they mostly wait for their host, and get less than the Floor;
//   - belong to another host and have waited for it for a moment now;
//   - belong to another host, mostly wait for it, and get a quarter or less of what the transfer gets with a slot,
//     which of a new one is presumed to be much;
//   - belong to a host with at least two slots more than the transfer's own, or have had their slot for a while when
//     its own host has none, and do not get four times as much.
//
// The transfers of one host wait for each other in the order of their arrival.
package slots
