"""Programs that change the objects they are given: each row, and each run of it, has its own."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import random
import sys
import threading
from collections import Counter, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Generic, NamedTuple, TypeVar

import pytest
from pydantic import BaseModel

import lmc
from lmc.errors import UsageError
from lmc.frontend.dsl import State
from lmc.frontend.owning import own

T = TypeVar("T")


@dataclasses.dataclass
class Row:
    seen: list[Any]
    n: int = 0


@dataclasses.dataclass(frozen=True)
class Frozen:
    seen: list[Any]


@dataclasses.dataclass(slots=True)
class Slots:
    seen: list[Any]
    __n: int = 0


class Plain:
    count = 0

    def __init__(self) -> None:
        self.add = self.seen_by_me
        self.seen: list[Any] = []

    def seen_by_me(self, x: Any) -> None:
        self.seen.append(x)
        self.count += 1


class Half:
    __slots__ = ("__dict__", "seen", "unset")

    def __init__(self) -> None:
        self.seen: list[Any] = []


class Model(BaseModel):
    seen: list[Any] = []
    _more: list[Any] = []


class Named(NamedTuple):
    seen: list[Any]


class Words(list[Any], Generic[T]):
    def __init__(self, *, mark: str) -> None:
        self.seen = [mark]


class Table(dict[Any, Any]):
    pass


class Bare:
    n = 0


def of_list(xs: Any, x: str) -> Any:
    xs.append(x)
    return list(xs)


def of_seen(row: Any, x: str) -> Any:
    row.seen.append(x)
    return list(row.seen)


def of_set(xs: Any, x: str) -> Any:
    xs.discard("a")
    xs.add(len(xs))
    return sorted(map(str, xs))


def of_dict(table: Any, x: str) -> Any:
    table["k"] = [*table.get("k", ()), x]
    table.setdefault("old", []).append(len(table))
    return [table["k"], table["old"]]


def of_counter(xs: Any, x: str) -> Any:
    xs["a"] += 1
    return xs["a"]


def of_bytes(xs: Any, x: str) -> Any:
    xs += b"x"
    return len(xs)


def of_method(row: Any, x: str) -> Any:
    row.add(x)
    return [row.count, list(row.seen)]


def of_model(row: Any, x: str) -> Any:
    row._more.append(x)
    return [list(row._more), *of_seen(row, x)]


def of_words(row: Any, x: str) -> Any:
    return [of_list(row, x), of_seen(row, x), type(row).__name__]


def of_attribute(row: Any, x: str) -> Any:
    row.n += 1
    return row.n


def of_deque(xs: Any, x: str) -> Any:
    return [of_list(xs, x), xs.maxlen]


Made = Callable[[], Any]
Change = Callable[[Any, str], Any]
KINDS: dict[str, tuple[Made, Change]] = {
    "dataclass": (lambda: Row([]), of_seen),
    "field": (lambda: Row([]), of_attribute),
    "frozen": (lambda: Frozen(["a"]), of_seen),
    "slots": (lambda: Slots([]), of_seen),
    "object": (Plain, of_method),
    "both": (Half, of_seen),
    "bare": (Bare, of_attribute),
    "model": (Model, of_model),
    "named": (lambda: Named([]), of_seen),
    "words": (lambda: Words(mark="m"), of_words),
    "namespace": (lambda: SimpleNamespace(n=1), of_attribute),
    "set": (lambda: {"a", "b"}, of_set),
    "bytearray": (lambda: bytearray(b"ab"), of_bytes),
    "deque": (lambda: deque(["a"], 2), of_deque),
    "userlist": (lambda: UserList(["a"]), of_list),
    "userdict": (lambda: UserDict(old=[1]), of_dict),
    "table": (lambda: Table(old=[1]), of_dict),
    "ordered": (lambda: OrderedDict(old=[1]), of_dict),
    "defaults": (lambda: defaultdict(list, old=[1]), of_dict),
    "counter": (lambda: Counter("aab"), of_counter),
    "nested": (
        lambda: Row([Row([deque([Plain()])])]),
        lambda r, x: of_method(r.seen[0].seen[0][0], x),
    ),
    "random": (lambda: random.Random(3), lambda rng, x: [rng.random(), rng.random()]),
    "in a list": (lambda: [Row([])], lambda rows, x: of_seen(rows[0], x)),
    "in a dict": (lambda: {1.5: Row([])}, lambda rows, x: of_seen(rows[1.5], x)),
    "in a tuple": (lambda: Named([(Row([]),)]), lambda r, x: of_seen(r.seen[0][0], x)),
}


def state_of(row: Any) -> Any:
    if isinstance(row, random.Random):
        return row.getstate()
    return repr(vars(row) if isinstance(row, (Plain, Bare)) else row)


def program(change: Change, whole: bool) -> lmc.Program:
    @lmc.jit
    def p(s: State, row: Any, x: str) -> Any:
        s += f"{len(str(change(row, 'one')))} {x}"
        s += lmc.gen("a", max_tokens=2)
        if not whole:  # here the graph ends, and all above is run again
            s += str(sorted({x: 1}))
        s += f"{change(row, 'two')}" + lmc.gen("b", max_tokens=2)
        return change(row, "three")

    return p


def shown(out: lmc.Result) -> Any:
    return out.variables, out.text, out.value, out.error


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_program_changes_is_its_own(fake: lmc.Engine, kind: str, whole: bool) -> None:
    make, change = KINDS[kind]
    row = make()
    before = state_of(row)
    p = program(change, whole)
    # the function itself, on an object that nobody else has
    wanted = shown(p.run(row=make(), x="it", eager=True))
    assert wanted[-1] is None
    assert shown(p.run(row=row, x="it", eager=True)) == wanted
    for level in range(4):
        options = lmc.Options(level=level)
        for _ in range(2):
            assert shown(p.run(row=row, x="it", options=options)) == wanted
    assert shown(p.run(row=row, x="it", eager=True)) == wanted
    after = state_of(row)
    assert after == before


@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize("whole", [True, False])
def test_rows_that_share_an_object(fake: lmc.Engine, whole: bool, eager: bool) -> None:
    p = program(of_seen, whole)
    row = Row([])
    wanted = p.run(row=Row([]), x="it", eager=True)

    def one_by_one() -> Iterator[dict[str, Any]]:
        for _ in range(3):
            yield {"row": row, "x": "it"}

    def values(outs: list[lmc.Result]) -> list[Any]:
        return [(out.value, out.text) for out in outs]

    async def all_of_them() -> list[Any]:
        outs = [await p.arun(row=row, x="it", eager=eager)]
        return values(outs + await p.arun_batch(one_by_one(), eager=eager))

    expected = [(wanted.value, wanted.text)]
    assert values(p.run_batch(list(one_by_one()), eager=eager)) == expected * 3
    assert values(p.run_batch(one_by_one(), eager=eager)) == expected * 3
    assert asyncio.run(all_of_them()) == expected * 4
    with p.stream(row=row, x="it", eager=eager) as stream:
        assert "".join(stream) == wanted.text
    assert row == Row([])


@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize("make", [list, lambda: Row([]), deque])
def test_a_row_is_what_it_was_when_it_was_given(
    fake: lmc.Engine, make: Callable[[], Any], eager: bool
) -> None:
    @lmc.jit
    def p(s: State, row: Any, x: str) -> Any:
        s += x + lmc.gen("a", max_tokens=3)
        s += str(sorted({s["a"]: 1}))
        return str(row)

    row = make()
    items = row.seen if isinstance(row, Row) else row
    given: list[str] = []

    def used_again() -> Iterator[dict[str, Any]]:
        for n in range(40):
            items.append(n)
            given.append(str(row))
            yield {"row": row, "x": f"{n}"}

    assert [out.value for out in p.run_batch(used_again(), eager=eager)] == given
    assert len(set(given)) == 40


def test_objects_that_are_one_stay_one() -> None:
    row = Row([])
    row.seen += [row, (row,)]
    given = own({"a": row, "b": [row], "c": {(1, 2): row}, "d": {object: row, 1.5: row.seen}})
    a = given["a"]
    assert type(a) is Row
    assert a is not row
    assert a.seen[0] is a.seen[1][0] is given["b"][0] is given["c"][1, 2] is given["d"][object] is a
    assert given["d"][1.5] is a.seen
    plain = Plain()
    by_object = own({"table": {plain: "found"}, "plain": plain, "known": {plain}})
    assert by_object["table"][by_object["plain"]] == "found"
    assert by_object["plain"] in by_object["known"]
    assert by_object["plain"] is not plain
    assert by_object["plain"].add.__self__ is by_object["plain"]


def test_objects_that_are_one_are_one_in_a_program(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, one: Any, rows: Any, table: Any, x: str) -> Any:
        one.seen.append(len(rows))
        s += f"{rows[0] is one} {table[one]} {rows[0].seen}" + x
        return None

    class Key(Plain):
        pass

    key = Key()
    for eager in (True, False):
        out = p.run(one=key, rows=[key], table={key: "t"}, x="", eager=eager)
        assert out.text == "True t [1]"


class Closing:
    def __init__(self) -> None:
        self.closed = False

    def __enter__(self) -> Closing:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True


class Deleted:
    def __init__(self) -> None:
        self.items: list[int] = []

    def __del__(self) -> None:
        self.items.append(1)


class Missing:
    def __repr__(self) -> str:
        return "missing"


class Own:
    def __init__(self) -> None:
        self.items: list[int] = []

    def __deepcopy__(self, memo: Any) -> Own:
        return self


class Failing(Own):
    def __deepcopy__(self, memo: Any) -> Own:
        raise ValueError("no")


def shared_ones() -> Iterator[Any]:
    import torch

    yield from (threading.Lock(), threading.Event(), sys.stdin, iter([1]), torch.zeros(2))
    yield from (torch.nn.Linear(1, 1), Row, len, shared_ones, copy, object(), Missing(), Own())
    yield from (Closing(), Deleted(), Failing(), lmc.Options(), ValueError("no"), lambda: 1)


def test_what_is_no_data_is_shared() -> None:
    for held in shared_ones():
        row = Row([held])
        given = own({"row": row, "held": held})
        assert given["row"] is not row
        assert given["held"] is given["row"].seen[0] is held


def test_an_object_that_cannot_be_copied_is_shared() -> None:
    hashes = [1]

    class Once(Plain):
        def __hash__(self) -> int:
            return hashes.pop()

        def __eq__(self, other: object) -> bool:
            return self is other

    table = {Once(): "a"}
    assert own({"table": table})["table"] is table


def test_objects_that_are_too_deep_are_refused(fake: lmc.Engine) -> None:
    row = Row([])
    for _ in range(5000):
        row = Row([row])
    for eager in (True, False):
        with pytest.raises(UsageError, match="an argument cannot be read"):
            program(of_attribute, True).run(row=row, x="", eager=eager)


def test_texts_and_numbers_are_not_copied() -> None:
    given = {"a": "x" * 100, "b": 10**30, "c": None, "d": 1.5, "e": b"x" * 100}
    assert all(own(given)[name] is given[name] for name in given)
