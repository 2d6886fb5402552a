"""The command line. Thin: every command parses, calls the library, and prints."""

from __future__ import annotations

import sys

import typer

from evergraph.cli import bench, paper, run
from evergraph.errors import EvergraphError

app = typer.Typer(
    help="Graph neural networks that keep learning when new classes arrive and old data is gone.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
run.add_commands(app)
bench.add_commands(app)
app.command("paper")(paper.paper_command)


def main() -> None:
    """Entry point: bad input is one line on stderr and exit status 2; Ctrl-C is 130."""
    try:
        app()
    except EvergraphError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone; nothing is left to say
        sys.exit(0)


if __name__ == "__main__":
    main()
