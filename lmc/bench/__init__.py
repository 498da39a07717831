"""Benchmarks that ship with lmc: programs, a peer that runs them too, and how both are timed."""
