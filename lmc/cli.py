"""The `lmc` command: its parser, and how errors become lines and exit codes.

Exit codes: 0 all right; 1 the program, or some row, failed; 2 wrong usage or unreadable input;
130 interrupted. Results go to stdout, everything else to stderr.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from lmc import __version__
from lmc.commands import options
from lmc.commands.bench import bench_command
from lmc.commands.cache import cache_commands
from lmc.commands.check import check_command
from lmc.commands.compile import compile_command
from lmc.commands.constraint import constraint_command
from lmc.commands.doctor import doctor_command
from lmc.commands.exits import FAILED, INTERRUPTED, WRONG_USAGE, exit_code
from lmc.commands.explain import explain_command
from lmc.commands.model import model_commands
from lmc.commands.output import STDOUT, say
from lmc.commands.run import run_command
from lmc.errors import InternalError, LmcError, RunError, told
from lmc.runtime.long_lived import rare_collections

__all__ = ["app", "main"]

# What the parser raises for wrong usage; typer exports only its subclasses.
_ParserError: Any = typer.BadParameter.__base__


_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class _Group(TyperGroup):
    """The command group; the one place where errors end."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,  # noqa: ARG002 - it is lmc, also as python -m lmc
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,  # noqa: ANN401 - passed on as it is
    ) -> Any:  # noqa: ANN401 - what a command returns
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is None:  # it was closed: what is written to it is lost
                setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        try:
            code = super().main(args, "lmc", complete_var, False, windows_expand_args, **extra)
            sys.stdout.flush()  # what cannot be written is found out here, not at exit
        except _ParserError as error:
            command = error.ctx.command_path if error.ctx is not None else "lmc"
            _say(f"error: {_one_line(error.format_message())}\n  hint: see {command} --help")
            code = WRONG_USAGE
        except typer.Abort:
            code = INTERRUPTED
        except OSError as error:
            if not isinstance(error, BrokenPipeError):
                _say(f"error: cannot write {STDOUT}: {error.strerror or error}")
            code = FAILED
        _drop_unwritten()
        if not standalone_mode:
            return code
        sys.exit(code)

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - the parser's own types
        try:
            return super().invoke(ctx)
        except LmcError as error:
            _say(f"error: {error.shown()}")
            fault: BaseException = error
            code = exit_code(error)
        except KeyboardInterrupt as error:
            _say("interrupted")
            fault, code = error, INTERRUPTED
        except BrokenPipeError:  # whoever read our output has gone; nothing is left to say
            raise typer.Exit(FAILED) from None
        except (_ParserError, typer.Exit, typer.Abort):
            raise
        except BaseException as error:
            if isinstance(error, SystemExit) and isinstance(error.__context__, BrokenPipeError):
                raise typer.Exit(FAILED) from None  # so the writer of help texts puts it
            _say(f"error: {_named(error).shown()}")
            fault, code = error, FAILED
        if ctx.meta.get(options.TRACEBACK):
            traceback.print_exception(fault)
        raise typer.Exit(code)


def _leave(code: int) -> None:
    """Exit at once where threads that run user code would hold the process."""
    if threading.active_count() > 1:  # also daemons: those of a pool are waited for
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _drop_unwritten() -> None:
    """Forget what standard output does not take, lest Python speaks of it at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _named(error: BaseException) -> LmcError:
    """An exception that nothing else took: of the machine, of a program, or a fault of ours."""
    package = ((error.name or "") if isinstance(error, ImportError) else "").partition(".")[0]
    if package and package != "lmc":
        hint = f"pip install {package}" + ", or use --model fake" * (package == "torch")
        if isinstance(error, ModuleNotFoundError):
            return RunError(f"{package} is not installed", hint=hint)
        return RunError(f"{package} cannot be imported: {error}", hint=hint)
    if isinstance(error, OSError) and error.errno in _FULL:
        return RunError(f"cannot write {error.filename or 'a file'}: {error.strerror}")
    if isinstance(error, OSError) and error.filename is not None:
        return RunError(f"{error.filename}: {error.strerror}")
    text = told(error)
    if isinstance(error, Exception):
        return InternalError(text, hint="this is a fault of lmc itself")
    from lmc.frontend.location import of_traceback

    return RunError(
        text, of_traceback(error.__traceback__), hint="a program must not end the process"
    )


def _one_line(message: str) -> str:
    """A message of the parser in the form of ours: no capital, no full stop."""
    message = " ".join(message.split()).rstrip(".").replace(" Value error,", "")
    return message[:1].lower() + message[1:]


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # the exit code says the rest
        print(text, file=sys.stderr)


app = typer.Typer(
    cls=_Group,
    help="A compiler for LM programs.",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("compile")(compile_command)
app.command("run")(run_command)
app.command("explain")(explain_command)
app.command("check")(check_command)
app.command("constraint")(constraint_command)
app.add_typer(model_commands, name="model")
app.add_typer(cache_commands, name="cache")
app.command("doctor")(doctor_command)
app.command("bench")(bench_command)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Compile LM programs and run them."""
    if version:
        say(f"lmc {__version__}\n", sys.stdout)
    elif context.invoked_subcommand is None:
        with contextlib.redirect_stdout(sys.stderr):
            print(context.get_help())
        raise typer.Exit(WRONG_USAGE)


def main() -> None:
    """Run `lmc` with the arguments of the process, and exit."""
    rare_collections()
    try:
        app()
    except SystemExit as end:
        if end.code == INTERRUPTED:  # here only: whoever calls `app` keeps the process
            _leave(INTERRUPTED)
        raise
