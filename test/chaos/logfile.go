package chaos

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// ending is how a container comes to its end, and with that what its log ends with.
type ending int

const (
	ends     ending = iota // by itself: all its lines are there
	obeys                  // at SIGTERM: it says bye
	isKilled               // by SIGKILL: its log may stop anywhere, and its last line be torn
)

// numbered is what a container writes: lines "tick 1", "tick 2" and so on.
type numbered struct {
	how  ending
	most int // how many lines there are when it ends by itself
}

// logProblem is what is wrong with a log.
type logProblem struct {
	loss Loss
	text string
}

// check reads a log in CRI format. It returns nil when the log is as it must be.
func (n numbered) check(path string) *logProblem {
	data, err := os.ReadFile(path)
	if err != nil {
		return &logProblem{Incomplete, err.Error()}
	}
	return n.checkText(string(data))
}

func (n numbered) checkText(data string) *logProblem {
	lines, torn, problem := join(data)
	if problem != nil {
		return problem
	}
	if torn && n.how != isKilled {
		return &logProblem{Incomplete, "the last line does not end"}
	}
	if torn {
		lines = lines[:len(lines)-1]
	}
	last, bye := 0, false
	for i, line := range lines {
		if line == "bye" && i == len(lines)-1 {
			bye = true
			break
		}
		number, err := strconv.Atoi(strings.TrimPrefix(line, "tick "))
		switch {
		case err != nil:
			return &logProblem{Incomplete, fmt.Sprintf("line %d is %q", i+1, line)}
		case number <= last:
			return &logProblem{Doubled, fmt.Sprintf("line %d is %q after tick %d", i+1, line, last)}
		case number != last+1:
			return &logProblem{Incomplete, fmt.Sprintf("ticks %d to %d are missing", last+1, number-1)}
		}
		last = number
	}
	switch {
	case n.how == ends && last != n.most:
		return &logProblem{Incomplete, fmt.Sprintf("it ends with tick %d of %d", last, n.most)}
	case n.how == obeys && !bye:
		return &logProblem{Incomplete, fmt.Sprintf("it ends with tick %d and without bye", last)}
	}
	return nil
}

// join puts the entries of a log together to lines. It is torn when the last line does not end.
func join(data string) (lines []string, torn bool, problem *logProblem) {
	line, open := "", false
	for entry := range strings.Lines(data) {
		text, whole := strings.CutSuffix(entry, "\n")
		fields := strings.SplitN(text, " ", 4)
		if !whole || len(fields) != 4 {
			return nil, false, &logProblem{Incomplete, fmt.Sprintf("entry %q is no entry of a log", entry)}
		}
		line, open = line+fields[3], fields[2] == "P"
		if !open {
			lines, line = append(lines, line), ""
		}
	}
	if open {
		lines = append(lines, line)
	}
	return lines, open, nil
}
