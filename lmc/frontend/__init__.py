"""The language: what programs may say, and the two ways to run the Python function behind one."""
