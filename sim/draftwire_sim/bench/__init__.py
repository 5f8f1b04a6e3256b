"""Benchmarks of the real system over emulated links."""
