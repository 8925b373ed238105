package image

import "berth/internal/config"

// standard is a configuration with the limits that a daemon has without a file.
func standard(root string) Config {
	c := config.Default().Images
	return Config{
		Root: root, MaxLayers: c.MaxLayers, MaxManifestBytes: c.MaxManifestBytes, MaxConfigBytes: c.MaxConfigBytes,
		MaxLayerBytes: c.MaxLayerBytes, MaxLayerEntries: c.MaxLayerEntries, MaxPullLayers: c.MaxPullLayers,
		MaxParallelLayers: c.MaxConcurrentDownloads, MaxLayerConnections: c.MaxLayerConnections,
		MaxImageBytes: c.MaxImageBytes, MaxLayerMemoryBytes: c.MaxLayerMemoryBytes,
		StallTimeout: c.StallTimeout.Duration, FirstByteTimeout: c.FirstByteTimeout.Duration,
		MaxBufferBytes: c.MaxBufferBytes,
	}
}
