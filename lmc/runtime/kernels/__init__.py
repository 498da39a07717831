"""Compiled CPU kernels, each defined by plain torch code elsewhere in the runtime."""
