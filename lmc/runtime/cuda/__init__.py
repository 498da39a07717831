"""The engine's runner for CUDA devices: kernels, their plans, and who calls them."""
