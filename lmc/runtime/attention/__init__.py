"""Attention over the KV pool: what is asked (`base`), its definition, and who answers."""
