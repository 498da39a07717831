"""The runtime: runs plans on a radix-cached, continuously batched engine. Knows no graphs."""
