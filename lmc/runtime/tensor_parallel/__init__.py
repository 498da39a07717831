"""One model on several devices: which part of it each process computes, and how they agree."""
