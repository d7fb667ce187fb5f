"""Runs the command ``ppcls`` as ``python -m ppcls``."""

import sys

from ppcls.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
