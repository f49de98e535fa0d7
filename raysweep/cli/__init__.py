"""The command line: a Typer app, one file per group of commands, no logic of its own."""
