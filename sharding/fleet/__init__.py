"""Run one job on many machines: its parts, the workers that do them, and the engine that runs the workers."""
