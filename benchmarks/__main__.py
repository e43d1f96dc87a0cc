"""``python -m benchmarks`` runs the evaluation."""

import sys

from benchmarks.run import main

sys.exit(main())
