"""The commands of `lmc`, a module each: read arguments, call the API, print, choose an exit code.

To add one, write a module with a function and add it to `lmc.cli`. Modules here import nothing
heavy at their top, so that every command starts at once.
"""
