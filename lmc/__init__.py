"""lmc: a compiler for LM programs."""

__version__ = "0.1.0"
