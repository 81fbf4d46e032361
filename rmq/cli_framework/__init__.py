"""The framework of the command line: options, output, tables, errors and exit codes."""
