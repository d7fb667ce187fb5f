"""Lists architectures with their cost: ``python tools/models.py list 'ResNet*'``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ppcls.cli.models import main

if __name__ == "__main__":
    sys.exit(main())
