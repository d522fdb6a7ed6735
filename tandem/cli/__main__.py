"""`python -m tandem.cli`, for where the script is not on the path."""

from tandem.cli.app import main

main()
