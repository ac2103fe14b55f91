"""Who computes a product: XLA, or a kernel of ours, and in which configuration."""
