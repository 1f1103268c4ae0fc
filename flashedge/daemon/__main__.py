"""`python -m flashedge.daemon` runs the daemon in the foreground."""

import sys

from flashedge.daemon.process import main

sys.exit(main())
