"""`python -m bench.soak`."""

from bench.soak.command import main

main()
