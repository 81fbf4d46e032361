"""The command line from a checkout: `python cli.py ping`. The commands live in rmq/cli/."""

from rmq.cli import main

if __name__ == "__main__":
    main()
