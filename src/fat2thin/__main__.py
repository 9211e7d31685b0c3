"""Run the command line with `python -m fat2thin`."""

from fat2thin.cli.main import main

if __name__ == "__main__":
    main()
