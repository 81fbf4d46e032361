"""Run a command (argv[2:]) whose stdin is a terminal, on which a person types argv[1]."""

import os
import pty
import subprocess
import sys

if __name__ == "__main__":
    ours, theirs = pty.openpty()
    os.write(ours, f"{sys.argv[1]}\n".encode())
    sys.exit(subprocess.call(sys.argv[2:], stdin=theirs))
