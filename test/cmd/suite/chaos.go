package main

import (
	"os/exec"
	"strconv"
	"time"
)

// fixedSeeds are the runs of `make test`. They run last and alone, and take two minutes in all. A seed repeats a
// schedule of strikes, not how they interleave, so what these meet differs from run to run.
var fixedSeeds = [][]string{
	{"-mix=daemon", "-runtime=runc", "-seed=1", "-for=50s"},
	{"-mix=mixed", "-runtime=crun", "-seed=2", "-for=50s"},
}

// freshSeeds are runs that nobody has made before: ten minutes for each mix and runtime.
func freshSeeds() (runs [][]string) {
	seed := uint64(time.Now().Unix())
	for _, mix := range []string{"daemon", "mixed", "disks"} {
		for _, runtime := range []string{"runc", "crun"} {
			seed++
			runs = append(runs, []string{"-mix=" + mix, "-runtime=" + runtime, "-seed=" + strconv.FormatUint(seed, 10),
				"-for=10m", "-longest=1m"})
		}
	}
	return runs
}

// strike makes runs of chaos, one after the other. Each prints what it met and lost.
func strike(t *tally, runs [][]string) {
	failed := t.failed
	if t.command("go", "build", "-o", "bin/chaos", "./test/cmd/chaos"); t.failed > failed {
		return
	}
	for _, args := range runs {
		out, err := exec.Command("bin/chaos", args...).CombinedOutput()
		if err != nil {
			t.fail("chaos "+args[0]+" "+args[1]+" "+args[2], string(out)+err.Error())
			continue
		}
		t.pass(args[0])
		_, _ = t.out.Write(out)
	}
}
