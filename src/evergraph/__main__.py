"""`python -m evergraph`: the command line where no script is installed."""

from evergraph.cli import main

if __name__ == "__main__":
    main()
