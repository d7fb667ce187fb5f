"""Runs linear_run.py with files limited to ``LIMIT`` bytes, as on a full disk."""

from __future__ import annotations

import os
import resource
import signal
import sys

import linear_run  # noqa: F401 - registers a model

from ppcls.cli.train import train

if __name__ == "__main__":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(os.environ["LIMIT"]), most))
    sys.exit(train())
