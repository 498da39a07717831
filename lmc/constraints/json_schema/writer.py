"""Shapes as expressions: how the values of a schema are written.

Every formula that holds arrays or objects becomes a rule, so that a schema that contains itself is
a rule that contains itself. Everything is a union of what can be written, without conjunction and
complement, except inside texts where patterns meet.
"""

from __future__ import annotations

from collections.abc import Iterable

from lmc.constraints.expression import (
    ALL,
    EPSILON,
    NEVER,
    Alt,
    Both,
    Chars,
    Expression,
    Not,
    Ref,
    Repeat,
    Rules,
    Seq,
    Text,
    one_of,
    walk,
)
from lmc.constraints.json_schema.arrays import counting
from lmc.constraints.json_schema.escapes import (
    EVERY,
    NEEDED,
    Ways,
    escaped,
    quoted,
    quoted_others,
    quoted_texts,
)
from lmc.constraints.json_schema.formulas import Formula
from lmc.constraints.json_schema.layout import Layout
from lmc.constraints.json_schema.meaning import Meaning
from lmc.constraints.json_schema.numbers import NumberBox, spelled
from lmc.constraints.json_schema.objects import Key, Members, State, members
from lmc.constraints.json_schema.shapes import ArrayRow, Member, ObjectRow, Shape
from lmc.constraints.json_schema.strings import TextBox
from lmc.constraints.machine import Machine

__all__ = ["Writer"]

_MOST_MERGED = 150  # states of a text with several conditions that are written out


class Writer:
    """Writes the values of formulas into one set of rules.

    Attributes:
        open: whether what was written has objects in which a key could come twice.
    """

    def __init__(self, meaning: Meaning, layout: Layout) -> None:
        self.meaning = meaning
        self.layout = layout
        self.open = False
        self._rules: list[Expression] = []
        self._numbers: dict[tuple[Formula, int], int] = {}
        self._flat: dict[Formula, Expression] = {}
        self._boxes: dict[tuple[object, Ways | None], Expression] = {}

    def write(self, formula: Formula) -> Expression:
        """The texts of all values of a formula, by itself."""
        start = self.value(formula, 0)
        return Rules((start, *self._rules)) if self._rules else start

    def value(self, formula: Formula, depth: int) -> Expression:
        """The texts of a formula's values at some depth, perhaps as a reference to a rule."""
        if formula is self.meaning.formulas.false or self.meaning.is_empty(formula):
            return NEVER
        known = self._flat.get(formula)
        if known is not None:
            return known
        shape = self.meaning.shape(formula)
        if not shape.arrays and not shape.objects:
            found = self._flat[formula] = _either(self._scalars(shape))
            return found
        key = (formula, self.layout.level(depth))
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self._new_rule()
            arms = [*self._scalars(shape)]
            arms += [self._array(row, depth) for row in shape.arrays]
            arms += [self._object(row, depth) for row in shape.objects]
            self._rules[number - 1] = _either(arms)
        return Ref(number)

    def _new_rule(self) -> int:
        self._rules.append(NEVER)
        return len(self._rules)

    def _spliced(self, rows: tuple[Expression, ...]) -> Expression:
        """Rules that refer to each other from 0 on, taken in among the others."""
        if not rows:
            return NEVER
        if len(rows) == 1 and not any(isinstance(node, Ref) for node in walk(rows[0])):
            return rows[0]
        base = len(self._rules) + 1
        self._rules.extend(_shifted(row, base) for row in rows)
        return Ref(base)

    # -- scalars -----------------------------------------------------------------------------

    def _scalars(self, shape: Shape) -> list[Expression]:
        arms: list[Expression] = [Text(text) for text in sorted(shape.literals)]
        arms += [self._number(box) for box in shape.numbers]
        arms += [self.text(box) for box in shape.strings]
        return arms

    def _number(self, box: NumberBox) -> Expression:
        key = (box, None)
        if key not in self._boxes:
            self._boxes[key] = self._spliced(spelled(box))
        return self._boxes[key]

    def text(self, box: TextBox, ways: Ways | None = None) -> Expression:
        """The texts of a box with quotation marks."""
        key = (box, ways)
        found = self._boxes.get(key)
        if found is None:
            found = self._boxes[key] = self._text(box, ways)
        return found

    def _text(self, box: TextBox, ways: Ways | None) -> Expression:
        if box.only is not None:
            return quoted_texts(box.only)
        if ways is None:
            # Where nothing but the length is asked, any escape will do as well.
            ways = NEEDED if box.inside or box.outside or box.without else EVERY
        expression = box.expression()
        if box.without:
            if expression == ALL:
                return quoted_others(box.without)
            expression = Both((expression, Not(one_of(box.without))))
        if any(isinstance(node, Both | Not) for node in walk(expression)):
            rows = _merged(expression)
            if rows is not None:
                base = len(self._rules) + 1
                inner = [quoted(row, ways) for row in rows]
                self._rules.extend(_shifted(_unquoted(row), base) for row in inner)
                return Seq((Text('"'), Ref(base), Text('"')))
        return quoted(expression, ways)

    # -- arrays ------------------------------------------------------------------------------

    def _array(self, row: ArrayRow, depth: int) -> Expression:
        layout = self.layout
        comma = layout.comma(depth)
        if row.some:
            return self._counted_array(row, depth)
        high = row.high
        items: list[Expression] = []
        for formula in row.prefix[: high if high is not None else len(row.prefix)]:
            item = self.value(formula, depth + 1)
            if item == NEVER:
                high = len(items)
                break
            items.append(item)
        rest: Expression = NEVER
        if high is None or high > len(items):
            rest = self.value(row.rest, depth + 1)
            if rest == NEVER:
                high = len(items)
        if high is not None and row.low > high:
            return NEVER
        more = None if high is None else high - len(items)
        after: Expression = self._others(
            rest, comma, max(row.low - len(items), 0), more, first=not items
        )
        for i in range(len(items) - 1, -1, -1):
            step = items[i] if i == 0 else Seq((comma, items[i]))
            after = Seq((step, after))
            if i >= row.low and i > 0:
                after = Alt((EPSILON, after))
        arms = [] if row.low else [layout.empty("[]")]
        if high is None or high > 0:
            arms.append(_sequence(layout.opening("[", depth), after, layout.closing("]", depth)))
        return _either(arms)

    def _others(
        self, item: Expression, comma: Expression, low: int, high: int | None, *, first: bool
    ) -> Expression:
        """So many items; `first` if there is none before them, and then one at least."""
        if item == NEVER or high == 0:
            return EPSILON
        step = _sequence(comma, item)
        if not first:
            return Repeat(step, low, high)
        return Seq((item, Repeat(step, max(low - 1, 0), None if high is None else high - 1)))

    def _counted_array(self, row: ArrayRow, depth: int) -> Expression:
        layout, found = self.layout, counting(row, self.meaning)
        states = {state: self._new_rule() for state in found.moves if state != found.start}
        comma = layout.comma(depth)

        def steps(state: tuple[int, tuple[int, ...]], before: Expression) -> list[Expression]:
            return [
                Seq((before, self.value(label, depth + 1), Ref(states[after])))
                for label, after in found.moves[state]
            ]

        for state, number in states.items():
            arms = steps(state, comma)
            if found.accepts(state):
                arms.append(EPSILON)
            self._rules[number - 1] = _either(arms)
        whole = []
        if found.accepts(found.start):
            whole.append(layout.empty("[]"))
        first = _either(steps(found.start, EPSILON))
        whole.append(Seq((layout.opening("[", depth), first, layout.closing("]", depth))))
        return _either(whole)

    # -- objects -----------------------------------------------------------------------------

    def _object(self, row: ObjectRow, depth: int) -> Expression:
        found = members(row, self.meaning)
        layout = self.layout
        needed = any(m.required for _, m in row.names)
        if any(m.required and self.meaning.is_empty(m.formula) for _, m in row.names):
            return NEVER
        chain = found.chain
        if chain is not None:
            empty, inside = not needed, self._chain(chain, found, depth)
        elif not found.orders and not found.free and not row.some:
            empty, inside = row.low == 0, self._rest(found, depth, row.low, row.high, first=True)
        else:
            found.explore()
            empty, inside = found.accepts(found.start), self._counted_object(found, depth)
        arms = [layout.empty("{}")] if empty else []
        if inside not in (EPSILON, NEVER):
            arms.append(_sequence(layout.opening("{", depth), inside, layout.closing("}", depth)))
        return _either(arms)

    def _member(
        self, key: Key, formula: Formula, depth: int, before: Expression = EPSILON
    ) -> Expression:
        if key.name is not None:
            name: Expression = Text(f'"{escaped(key.name)}"')
        else:
            assert key.keys is not None
            name = self.text(key.keys, NEEDED)
        return _sequence(before, name, self.layout.colon(depth), self.value(formula, depth + 1))

    def _rest(
        self, found: Members, depth: int, low: int, high: int | None, *, first: bool
    ) -> Expression:
        """Further members."""
        self.open = self.open or bool(found.rest)
        arms = [self._member(Key(None, keys), formula, depth) for keys, formula in found.rest]
        comma = self.layout.comma(depth)
        return self._others(_either(arms), comma, low, high, first=first)

    def _chain(self, chain: list[tuple[str, Member]], found: Members, depth: int) -> Expression:
        """One member at least, each at most once and in its order."""
        comma = self.layout.comma(depth)
        items = [(Key(name, None), member) for name, member in chain]

        def follows(key: Key, member: Member) -> Expression:
            step = self._member(key, member.formula, depth, comma)
            return step if member.required else Repeat(step, 0, 1)

        rest = self._rest(found, depth, 0, None, first=False)
        first = next((i for i, (_, m) in enumerate(items) if m.required), None)
        # What follows the first member that must come, in one row; before it any may be the first.
        last = len(items) if first is None else first + 1
        after: Expression = _sequence(*(follows(*item) for item in items[last:]), rest)
        arms = []
        if first is None:
            alone = self._rest(found, depth, 0, None, first=True)
            if alone not in (EPSILON, NEVER):
                arms.append(alone)
        # From the last on, so that what is shared has been looked at before it is met from above.
        for key, member in reversed(items[:last]):
            arms.append(Seq((self._member(key, member.formula, depth), after)))
            after = Seq((follows(key, member), after))
        return _either(arms)

    def _counted_object(self, found: Members, depth: int) -> Expression:
        self.open = True
        states = {state: self._new_rule() for state in found.moves if state != found.start}
        comma = self.layout.comma(depth)
        known: dict[tuple[Key, Formula, State], Expression] = {}

        def step(move: tuple[Key, Formula, State]) -> Expression:
            arm = known.get(move)
            if arm is None:
                key, formula, after = move
                member = self._member(key, formula, depth, comma)
                arm = known[move] = _sequence(member, Ref(states[after]))
            return arm

        for state, number in states.items():
            arms = [step(move) for move in found.moves[state]]
            if found.accepts(state):
                arms.append(EPSILON)
            self._rules[number - 1] = _either(arms)
        return _either(
            _sequence(self._member(key, formula, depth), Ref(states[after]))
            for key, formula, after in found.moves[found.start]
        )


def _sequence(*parts: Expression) -> Expression:
    """Parts one after the other, with sequences among them and neighbouring texts made one."""
    found: list[Expression] = []
    for part in parts:
        for item in part.items if isinstance(part, Seq) else (part,):
            if isinstance(item, Text) and found and isinstance(found[-1], Text):
                found[-1] = Text(found[-1].text + item.text)
            elif item != EPSILON and item != Text(""):
                found.append(item)
    return found[0] if len(found) == 1 else Seq(tuple(found))


def _either(arms: Iterable[Expression]) -> Expression:
    found = {id(arm): arm for arm in arms if arm != NEVER}
    return next(iter(found.values())) if len(found) == 1 else Alt(tuple(found.values()))


def _merged(expression: Expression) -> list[Expression] | None:
    """An expression with conjunctions as the rules of its automaton; None if that is too large."""
    machine = Machine(expression)
    if machine.start is None:
        return [NEVER]
    order = [machine.start // machine.nodes]
    number = {order[0]: 0}
    rows: list[Expression] = []
    for state in order:
        arms: list[Expression] = []
        for mask, target in machine.targets(state):
            if target not in number:
                number[target] = len(order)
                order.append(target)
                if len(order) > _MOST_MERGED:
                    return None
            arms.append(Seq((Chars(machine.chars_of(mask)), Ref(number[target]))))
        if machine.accepts(state * machine.nodes):
            arms.append(EPSILON)
        rows.append(_either(arms))
    return rows


def _unquoted(expression: Expression) -> Expression:
    assert isinstance(expression, Seq)
    return expression.items[1]


def _shifted(node: Expression, base: int) -> Expression:
    """The same with all references moved by `base`."""
    match node:
        case Ref(index):
            return Ref(index + base)
        case Seq(items):
            return Seq(tuple(_shifted(i, base) for i in items))
        case Alt(items):
            return Alt(tuple(_shifted(i, base) for i in items))
        case _:
            return node
