"""`python -m fat2thin` is the command line."""

from fat2thin.cli.main import main

if __name__ == "__main__":
    main()
