"""`python -m collector`: see `collector.cli`."""

import sys

from collector.cli import main

if __name__ == "__main__":
    sys.exit(main())
