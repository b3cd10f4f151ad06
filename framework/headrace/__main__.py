"""`python -m headrace` is the command `headrace`, also where its directory is not on the path."""

from headrace.cli.main import main

if __name__ == "__main__":
    main()
