// Package timeouts says how long tests wait on the machine that they run on.
package timeouts

import (
	"os"
	"strconv"
	"sync"
	"time"
)

// Variable is the environment variable that says how many times longer than on a quick machine things may take. test/vm
// sets it in machines whose processor is emulated.
const Variable = "BERTH_TEST_SCALE"

// For is how long a test gives what takes at most d on a quick machine. It is d unless Variable says otherwise.
//
// It is for the most that something may take, never for the least: what must not be over before a second is a second
// everywhere.
func For(d time.Duration) time.Duration { return d * time.Duration(Scale()) }

// Scale is what Variable says, and 1 when it says nothing that makes sense.
func Scale() int { return scale() }

var scale = sync.OnceValue(func() int { return parse(os.Getenv(Variable)) })

func parse(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 1
	}
	return n
}
