"""`python -m lmc.constraints PATTERN`: the command `lmc constraint`."""

import sys

from lmc.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["constraint"]
    main()
