"""Constraints as automata over bytes; knows no IR and no model."""
