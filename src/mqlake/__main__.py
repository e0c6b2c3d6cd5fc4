"""`python -m mqlake` is `mqlake`."""

from mqlake.cli.main import main

main()
