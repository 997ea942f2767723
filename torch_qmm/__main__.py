"""``python -m torch_qmm``: the command line."""

import sys

from torch_qmm.cli import main

sys.exit(main())
