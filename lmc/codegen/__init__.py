"""From optimized graphs to plans, and plans as files."""
