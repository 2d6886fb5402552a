"""The command line, a thin layer: every command parses, calls the library, and prints."""

from __future__ import annotations

import inspect
import os
import sys
import warnings
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from evergraph import program
from evergraph.cli.failures import Stopped, drop_output, flush, one_line, prepare_streams
from evergraph.cli.together import quiet_unless_first
from evergraph.core.workers import launched, leave_workers, speaks_first
from evergraph.errors import EvergraphError, EvergraphWarning, Repeats
from evergraph.experiments.engines import ArrayWrittenError
from evergraph.registry import add_plugin_files, in_a_plugin
from evergraph.version import __version__

UsageError: Any = typer.BadParameter.__base__  # click's error for wrong options and commands, wherever typer keeps it


def make_app() -> typer.Typer:
    """Make the app with all commands. Help texts list registered names, so plug-ins are loaded here, not at import."""
    from evergraph.cli import (
        bench,
        compare,
        convert,
        evaluate,
        forget,
        leak,
        learner,
        paper,
        predict,
        report,
        run,
        tune,
        why,
    )

    app = typer.Typer(
        cls=_Group,
        help="Graph neural networks that keep learning when new classes arrive and old data is gone.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback()(_every_command)
    for module in (run, compare, tune, leak, learner, predict, evaluate, why, forget, report, bench, convert, paper):
        module.add_commands(app)
    for command in app.registered_commands:
        command.cls = _Command
        paragraphs = inspect.cleandoc(getattr(command.callback, "__doc__", None) or "").split("\n\n")
        command.help = "\n\n".join(" ".join(text.split()) for text in paragraphs)  # wrapped for the terminal
    return app


def _flags_alone(params: list[Any]) -> list[Any]:
    """The same parameters, without a type for flags, which take no value."""
    for param in params:
        param.metavar = "" if getattr(param, "is_flag", False) else param.metavar
    return params


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> Any:
        return _flags_alone(super().get_params(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Name a flag and its opposite in one column: another one would leave too little room for the texts."""
        names = [(param, param.opts, param.secondary_opts) for param in self.params]
        for param, opts, secondary in names:
            if param.default is None:  # else typer calls the default by these names
                opposites = [f" {name}" for name in secondary]  # a line may break at the space
                param.opts, param.secondary_opts = [*opts, *opposites], []
        super().format_help(ctx, formatter)
        for param, opts, secondary in names:  # the next call of the command, in this process, parses by them
            param.opts, param.secondary_opts = opts, secondary


class _Group(TyperGroup):
    def get_params(self, ctx: Any) -> Any:
        return _flags_alone(super().get_params(ctx))


def main() -> None:
    """Entry point: bad input prints one line on stderr and exits with status 2; Ctrl-C exits with 130."""
    warnings.simplefilter("always", EvergraphWarning, append=True)  # `_notes` shows each once for every call of `main`
    warnings.showwarning = _notes()
    try:
        program.ready()
        prepare_streams()
        words, plugins = _plugins(sys.argv[1:])
        quiet_unless_first(words)
        add_plugin_files(plugins)
        status = _run(words)
        flush()
        leave_workers()
        sys.exit(status)
    except UsageError as error:
        if message := error.format_message():  # without arguments, the help was already printed
            command = error.ctx.command_path if error.ctx else "evergraph"
            _complain(f"{message.rstrip('.')}{_value_given(error)}; see {command} --help")
        sys.exit(2)
    except ArrayWrittenError as written:  # not a failure: there is nothing more to do for now
        print(written)
        sys.exit(0)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        drop_output()  # the reader of our output is gone
        sys.exit(0)
    except Exception as error:
        if (message := one_line(error)) is None:
            sys.stderr = sys.__stderr__ if launched() > 1 else sys.stderr
            raise  # a bug of ours: the traceback helps to fix it
        _complain(message)
        if launched() > 1:
            os._exit(2)  # other processes may never answer, and torch would wait for them
        drop_output() if isinstance(error, OSError) else None
        sys.exit(2)


def _run(words: list[str]) -> int:
    """Run a command and return its exit status; no code but ours may end the program."""
    try:
        return make_app()(words, prog_name="evergraph", standalone_mode=False) or 0
    except Stopped:
        raise
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # rich's way to say that nobody reads its output any more
            raise error.__context__ from None
        place = in_a_plugin(error)
        raise EvergraphError(f"{place or 'some code'} called sys.exit; let it raise an error instead") from None


def _every_command(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.", is_eager=True)] = False,
    plugin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE.py",
            help="Load a Python file that registers your own method, model, …; works with every command.",
        ),
    ] = None,
) -> None:
    pass  # both options are handled before the command line is parsed


def _plugins(words: list[str]) -> tuple[list[str], list[str]]:
    """Split the command line into the words without `--plugin FILE`, wherever it is given, and the plug-in files."""
    left, files, rest = list[str](), list[str](), iter(words)
    for word in rest:
        if word == "--version":
            print(f"evergraph {__version__}")
            raise SystemExit(0)
        if word == "--plugin":
            files.append(next(rest, ""))
        elif word.startswith("--plugin="):
            files.append(word.partition("=")[2])
        else:
            left.append(word)
    if "" in files:
        raise EvergraphError("--plugin needs the path of a Python file")
    return left, files


def _complain(message: str) -> None:
    """Print one error line on stderr, however many processes have failed."""
    if speaks_first():
        print(f"error: {' '.join(message.split())}", file=sys.__stderr__ if launched() > 1 else sys.stderr, flush=True)


def _notes() -> Callable[..., None]:
    """Return a `showwarning`: ours as a line on stderr, once however often a graph is read; others as Python does.

    What is the same for several files is shown for the first.
    """
    said, repeats = set[str](), Repeats()

    def show(message: Warning | str, category: type[Warning], *place: Any) -> None:
        ours = issubclass(category, EvergraphWarning)
        if isinstance(message, EvergraphWarning) and message.about:
            instead = repeats.instead(message.about, message.said)
            message = message if instead is None else instead
            if not str(message):
                return
        text = f"note: {message}\n" if ours else warnings.formatwarning(message, category, *place[:2])
        if not ours or text not in said:
            sys.stderr.write(text)
        said.add(text)

    return show


def _value_given(error: Any) -> str:
    """The value given for the option that an error is about, which typer does not report."""
    names = getattr(getattr(error, "param", None), "opts", [])
    values = [value for name, value in zip(sys.argv, sys.argv[1:]) if name in names]
    values += [word.partition("=")[2] for word in sys.argv if word.partition("=")[0] in names and "=" in word]
    return f" (found {values[0]!r})" if values else ""


if __name__ == "__main__":
    main()
