import sys

from marl_plugins.cli import main

sys.exit(main())
