"""`python -m collector`: see `collector.jobs.cli`."""

import sys

from collector.jobs.cli import main

if __name__ == "__main__":
    sys.exit(main())
