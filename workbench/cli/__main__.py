"""`python -m workbench.cli`: the command where no script is installed, and of the arms of a comparison."""

from workbench.cli import main

main()
