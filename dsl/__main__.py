"""`python -m dsl`."""

from dsl.cli import main

main()
