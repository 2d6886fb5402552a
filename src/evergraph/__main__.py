"""`python -m evergraph`: the command line without the installed script."""

from evergraph.cli import main

if __name__ == "__main__":
    main()
