"""How costs grow with waiting messages, slots and bodies: `--only growth`."""
