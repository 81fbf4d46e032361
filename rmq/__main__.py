"""`python -m rmq`: the command line, the same as `rmq`."""

from rmq.cli import main

if __name__ == "__main__":
    main()
