"""`python -m workbench.cli`: the command without an installed script; arms of a comparison are started by it."""

from workbench.cli import main

main()
