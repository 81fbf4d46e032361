"""The services of the server, one file each."""
