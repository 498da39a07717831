"""`python -m lmc` is `lmc`."""

from lmc.cli import main

if __name__ == "__main__":
    main()
