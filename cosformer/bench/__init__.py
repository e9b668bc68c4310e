"""Measurements: correctness first, everything warmed, systems interleaved, medians with their spread."""
