"""Convert the Lua scripts to the form that Redis gets.

script_loader   finds `lua/`, and composes each script
inlining        replaces constants and calls of inline functions
shortening      shortens the names of locals, and removes spaces
error_locations  adds source file and line to the error of a script
"""
