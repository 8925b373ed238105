// Package inflate has a program of the node, igzip, inflate gzip streams. It takes about a third of the processor
// time of the library that the daemon has, and is given whatever an image brings: so it runs as nobody, with nothing
// to write to but its output, and what it says is believed only as far as it can be proven.
//
// A program that is given a stream tells neither where the stream's last member ended nor what came behind it. igzip
// passes over anything there, which the daemon refuses. So each stream is followed by a further member, the mark: some
// random bytes, stored. Only a program that came through the stream, member by member, to its very end inflates the
// mark, which whoever makes a stream cannot know. Output that does not end in the mark is no proof of anything: whoever
// has the stream again reads it by the library, whose word counts.
package inflate
