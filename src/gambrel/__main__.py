"""python -m gambrel."""

import sys

from gambrel.cli import main

if __name__ == "__main__":
    sys.exit(main())
