"""Run the audit as `python -m spark_connector.audit`."""

from __future__ import annotations

import sys

from spark_connector.audit.cli import main

if __name__ == "__main__":
    sys.exit(main())
