package node

import (
	"fmt"
	"strings"
	"time"
)

func parseLog(data string) ([]LogLine, error) {
	var lines []LogLine
	for data != "" {
		raw, rest, ended := strings.Cut(data, "\n")
		if !ended {
			return lines, fmt.Errorf("log ends in the middle of a line: %q", raw)
		}
		line, err := parseLine(raw)
		if err != nil {
			return lines, err
		}
		lines, data = append(lines, line), rest
	}
	return lines, nil
}

func parseLine(raw string) (LogLine, error) {
	parts := strings.SplitN(raw, " ", 4)
	if len(parts) != 4 {
		return LogLine{}, fmt.Errorf("log line has %d fields, not 4: %q", len(parts), raw)
	}
	at, err := time.Parse(time.RFC3339Nano, parts[0])
	if err != nil {
		return LogLine{}, fmt.Errorf("log line %q: %w", raw, err)
	}
	if parts[1] != "stdout" && parts[1] != "stderr" {
		return LogLine{}, fmt.Errorf("log line of stream %q: %q", parts[1], raw)
	}
	tag, _, _ := strings.Cut(parts[2], ":")
	if tag != "F" && tag != "P" {
		return LogLine{}, fmt.Errorf("log line with tag %q: %q", parts[2], raw)
	}
	return LogLine{Time: at, Stream: parts[1], Full: tag == "F", Text: parts[3]}, nil
}

// Text joins what the log holds of one stream, or of both when stream is empty, as the container wrote it.
func Text(lines []LogLine, stream string) string {
	var b strings.Builder
	for _, l := range lines {
		if stream == "" || l.Stream == stream {
			b.WriteString(l.Text)
			if l.Full {
				b.WriteByte('\n')
			}
		}
	}
	return b.String()
}
