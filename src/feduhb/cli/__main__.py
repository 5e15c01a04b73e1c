"""`python -m feduhb.cli`."""

from feduhb.cli import main

main()
