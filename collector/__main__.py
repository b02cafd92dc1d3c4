"""`python -m collector`: see `collector.job.cli`."""

import sys

from collector.job.cli import main

if __name__ == "__main__":
    sys.exit(main())
