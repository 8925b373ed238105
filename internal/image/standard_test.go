package image

import (
	"os"
	"sync"
	"testing"

	"berth/internal/config"
	"berth/internal/helper"
	"berth/internal/image/unpack"
	"berth/test/node"
)

// unpackProgram is berth-unpack, for the children of tests too.
const unpackProgram = "BERTH_TEST_UNPACK"

func TestMain(m *testing.M) {
	if os.Getenv(unpackProgram) == "" {
		path, err := node.Unpacker()
		if err != nil {
			panic(err)
		}
		_ = os.Setenv(unpackProgram, path)
	}
	os.Exit(m.Run())
}

// testCrew starts unpackers for all tests.
var testCrew = sync.OnceValue(func() *helper.Crew {
	return &helper.Crew{
		Program: os.Getenv(unpackProgram), Capabilities: unpack.Capabilities(), Nice: 10, Slack: unpack.TimerSlack,
	}
})

// crewOfTests is who unpacks in tests that do not care: the daemon, or with BERTH_TEST_CONFINED processes of their own.
func crewOfTests() Crew {
	if os.Getenv("BERTH_TEST_CONFINED") == "" {
		return nil
	}
	return testCrew()
}

// standard is a configuration with the limits that a daemon has without a file.
func standard(root string) Config {
	c := config.Default().Images
	return Config{
		Root: root, MaxLayers: c.MaxLayers, MaxManifestBytes: c.MaxManifestBytes, MaxConfigBytes: c.MaxConfigBytes,
		MaxLayerBytes: c.MaxLayerBytes, MaxLayerEntries: c.MaxLayerEntries, MaxPullLayers: c.PullLayers(2),
		MaxParallelLayers: c.Downloads(2), MaxLayerConnections: c.MaxLayerConnections,
		MaxImageBytes: c.MaxImageBytes, MaxLayerMemoryBytes: c.MaxLayerMemoryBytes,
		MinFreePercent: c.MinFreePercent,
		StallTimeout:   c.StallTimeout.Duration, FirstByteTimeout: c.FirstByteTimeout.Duration,
		MaxBufferBytes: c.MaxBufferBytes, Unpackers: crewOfTests(),
	}
}
