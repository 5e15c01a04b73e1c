"""`python -m feduhb.cli`."""

from feduhb.cli import main

if __name__ == "__main__":
    main()
