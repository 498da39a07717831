"""Programs from files: `PROGRAM.py[:NAME]` is imported as a module, `ARTIFACT.lmc` is loaded."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from lmc.errors import LmcError, Location, TraceError, UsageError, told

if TYPE_CHECKING:
    from lmc.api import Loaded, Program

__all__ = [
    "ARTIFACT_SUFFIX",
    "faults_of_program",
    "load_program",
    "load_programs",
    "load_source",
    "package_of",
    "source_path",
]

ARTIFACT_SUFFIX = ".lmc"

_numbers = itertools.count()


def load_source(source: str) -> Program | Loaded:
    """The program that `PROGRAM.py[:NAME]` or `ARTIFACT.lmc` names.

    Raises:
        UsageError: the file or the name is not there, or the file holds several programs.
        PlanError: the artifact is damaged or of another version.
        TraceError: the file cannot be imported.
    """
    if Path(source).suffix == ARTIFACT_SUFFIX:
        from lmc.api import load

        _check_file(Path(source))
        try:
            return load(source)
        except OSError as error:
            raise UsageError(f"{source} cannot be read: {error.strerror or error}") from error
    return load_program(source)


def load_program(source: str) -> Program:
    """The program that `PROGRAM.py[:NAME]` names.

    Raises:
        UsageError: the file or the name is not there, or the file holds several programs.
        TraceError: the file cannot be imported.
    """
    path, name = _program_file(source)
    return _chosen(_imported(path), path, name)


def load_programs(source: str) -> dict[str, Program]:
    """The program that `PROGRAM.py:NAME` names, or all that `PROGRAM.py` makes, by their sources.

    Raises:
        As `load_program`; a file may hold several.
    """
    path, name = _program_file(source)
    module = _imported(path)
    if name:
        return {source: _chosen(module, path, name)}
    own = _made_in(module)
    if len(own) < 2:
        return {source: _chosen(module, path, "")}
    return {f"{path}:{name}": program for name, program in own.items()}


def _program_file(source: str) -> tuple[Path, str]:
    """The Python file of a source, and the name of the program in it or nothing."""
    path, name = _parted(source)
    _check_file(path)
    if path.suffix == ARTIFACT_SUFFIX:
        raise UsageError(
            f"{path} is an artifact", hint="this command needs the .py file that it was made from"
        )
    if path.suffix != ".py":
        raise UsageError(f"{path} is not a Python file", hint="give PROGRAM.py or PROGRAM.py:NAME")
    return path, name


def source_path(source: str) -> Path:
    """The file that `PROGRAM.py[:NAME]` or `ARTIFACT.lmc` names."""
    return _parted(source)[0]


def _parted(source: str) -> tuple[Path, str]:
    path, name = Path(source), ""
    if not path.exists():
        file, colon, last = source.rpartition(":")
        if colon and (not last or all(part.isidentifier() for part in last.split("."))):
            path, name = Path(file), last
    return path, name


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise UsageError(f"{path} is a directory", hint="give PROGRAM.py or PROGRAM.py:NAME")
    if not path.is_file():
        near = difflib.get_close_matches(path.name, _neighbours(path), n=1)
        hint = f"did you mean {path.with_name(near[0])}?" if near else None
        raise UsageError(f"there is no file {path}", hint=hint)


def _neighbours(path: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return [other.name for other in path.parent.iterdir() if other.suffix == path.suffix]
    return []


def _imported(path: Path) -> ModuleType:
    """The file as a module of a name of its own; its directory is searched for neighbours.

    In a package it is a module of that package, so that it can say `from . import neighbour`.
    """
    import lmc.api  # noqa: F401 - before the file's neighbours can hide anything that it imports
    from lmc.frontend.location import of_traceback

    name = f"lmc_program_{next(_numbers)}_{path.stem}"
    folders = [str(path.resolve().parent)]
    package = package_of(path.resolve().parent)
    if package:
        name = f"{'.'.join(package)}.{name}"
        folders.append(str(path.resolve().parents[len(package)]))
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None, "a .py file has a loader"
    assert spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path[:0] = folders
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what it prints is no result
            if package:
                importlib.import_module(".".join(package))
            spec.loader.exec_module(module)
    except SyntaxError as error:
        where = Location(_shown(error.filename or str(path)), error.lineno or 1)
        raise TraceError(f"{type(error).__name__}: {error.msg}", where) from error
    except LmcError as error:
        located = TraceError(error.problem, error.where, hint=error.hint)
        raise located.at(of_traceback(error.__traceback__)) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        where = of_traceback(error.__traceback__) or Location(str(path), 1)
        raise _raised(error, where) from error
    finally:
        # At the end of the path, a neighbour called like a library cannot hide the library from
        # what lmc itself imports later, yet the program's functions can still import it.
        for folder in folders:
            sys.path.remove(folder)
            sys.path.append(folder)
    return module


def package_of(folder: Path) -> list[str]:
    """The names of the packages that a folder is, outermost first; none if it is no package."""
    names: list[str] = []
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        names.insert(0, folder.name)
        folder = folder.parent
    return names


def _raised(error: BaseException, where: Location | None) -> TraceError:
    """What a program raised, as an error of its own."""
    hint = "a program must not end the process" if isinstance(error, SystemExit) else None
    return TraceError(told(error), where, hint=hint)


def _shown(filename: str) -> str:
    path = Path(filename)
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return filename


def _chosen(module: ModuleType, path: Path, name: str) -> Program:
    from lmc.api import Program

    programs = {key: held for key, held in vars(module).items() if isinstance(held, Program)}
    if name:
        held: object = module
        for part in name.split("."):  # a method is reached through its object
            held = getattr(held, part, None)
        if isinstance(held, Program):
            return held
        if held is not None:
            raise UsageError(f"{name} in {path} is not a program", hint="decorate it with @lmc.jit")
        near = difflib.get_close_matches(name, programs, n=1)
        raise UsageError(
            f"there is no program {name} in {path}",
            hint=f"did you mean {path}:{near[0]}?" if near else _listed(programs, path),
        )
    own = _made_in(module)
    if not own:
        raise UsageError(
            f"there is no program in {path}", hint="decorate the function with @lmc.jit"
        )
    if len(own) > 1:
        raise UsageError(f"there are {len(own)} programs in {path}", hint=_listed(own, path))
    return next(iter(own.values()))


def _made_in(module: ModuleType) -> dict[str, Program]:
    """The programs of a file, each once, by name.

    Those that it imports from elsewhere are helpers, unless there are no others.
    """
    from lmc.api import Program

    programs = {key: held for key, held in vars(module).items() if isinstance(held, Program)}
    own = {k: p for k, p in programs.items() if p.function.__module__ == module.__name__}
    first = {id(p): k for k, p in reversed((own or programs).items())}
    return {name: programs[name] for name in programs if first.get(id(programs[name])) == name}


def _listed(programs: dict[str, Program], path: Path) -> str:
    if not programs:
        return "decorate the function with @lmc.jit"
    return "give one of " + ", ".join(f"{path}:{name}" for name in programs)


@contextlib.contextmanager
def faults_of_program() -> Iterator[None]:
    """Tell misuse inside a program (exit code 1) from misuse of the command line (2).

    What the program prints goes to stderr: it is no result.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except UsageError as error:
        raise TraceError(error.problem, error.where, hint=error.hint) from error
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:  # sys.exit() in a program must not end ours in silence
        from lmc.frontend.location import of_traceback

        raise _raised(error, of_traceback(error.__traceback__)) from error
