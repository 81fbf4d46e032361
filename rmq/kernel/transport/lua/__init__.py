"""The Lua scripts as Redis gets them.

script_loader   finds `lua/`, and composes each script
inlining        puts constants and inline functions in their places
error_places    names the line of the source in the error of a script
"""
