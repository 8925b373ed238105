package cli

import (
	"fmt"
	"io"
	"strings"
	"sync"

	"golang.org/x/term"

	"berth/internal/admin"
)

// progress shows how a pull, an import or an export goes on: a bar for each layer on a terminal, a line for each phase
// elsewhere.
type progress struct {
	mu     sync.Mutex // guards what follows; held while drawing
	w      io.Writer
	width  int // of the terminal; 0 when there is none
	height int
	layers []string // in the order of their first event
	last   map[string]admin.PullEvent
	drawn  int // lines that stand on the terminal
}

func newProgress(w io.Writer) *progress {
	p := &progress{w: w, last: map[string]admin.PullEvent{}}
	if terminal := terminalOf(w); terminal != nil {
		p.width, p.height, _ = term.GetSize(int(terminal.Fd()))
	}
	return p
}

func (p *progress) event(e admin.PullEvent) {
	if e.Layer == "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	before, known := p.last[e.Layer]
	if !known {
		p.layers = append(p.layers, e.Layer)
	}
	if e.Total == 0 {
		e.Total = before.Total
	}
	p.last[e.Layer] = e
	if p.width > 0 {
		p.draw()
	} else if before.Phase != e.Phase {
		fmt.Fprintf(p.w, "layer %s: %s%s\n", short(e.Layer), e.Phase, sized(e.Total))
	}
}

// onTerminal says that standard error is a terminal.
func (p *progress) onTerminal() bool { return p.width > 0 }

func sized(total int64) string {
	if total <= 0 {
		return ""
	}
	return " (" + bytesText(uint64(total)) + ")"
}

// end leaves the terminal as it is.
func (p *progress) end() { p.drawn = 0 }

// draw replaces the lines that stand by the present ones. Of more layers than the terminal has lines it shows the last,
// since what scrolled away cannot be replaced.
func (p *progress) draw() {
	var text strings.Builder
	if p.drawn > 0 {
		fmt.Fprintf(&text, "\x1b[%dA", p.drawn)
	}
	shown := p.layers
	if room := max(p.height-1, 1); len(shown) > room {
		shown = shown[len(shown)-room:]
	}
	for _, layer := range shown {
		fmt.Fprintf(&text, "\r\x1b[K%s\n", visibleLine(bar(p.last[layer], p.width)))
	}
	p.drawn = len(shown)
	_ = drawOn(p.w, text.String())
}

// bar is the line of one layer, never longer than the terminal is wide.
func bar(e admin.PullEvent, width int) string {
	line := fmt.Sprintf("%s %-11s", short(e.Layer), e.Phase)
	if e.Total > 0 && e.Done > 0 && e.Done <= e.Total {
		amount := bytesText(uint64(e.Done)) + " / " + bytesText(uint64(e.Total))
		if room := width - len(line) - len(" []  1000 kB / 1000 kB") - 1; room >= 10 {
			room = min(room, 40)
			full := int(int64(room) * e.Done / e.Total)
			line += " [" + strings.Repeat("=", full) + strings.Repeat(" ", room-full) + "]"
		}
		line += "  " + amount
	}
	return line[:min(len(line), max(width-1, 1))]
}
