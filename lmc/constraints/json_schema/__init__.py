"""JSON Schema as a constraint: the texts of all values that are valid.

document   what is written, and where references lead
meaning    what keywords say: formulas to shapes (`formulas`, `shapes`, `arrays`, `objects`,
           `unevaluated`)
numbers    strings formats    sets of numbers and texts
writer     how values are written (`escapes`, `layout`)
"""

from __future__ import annotations

from collections.abc import Collection

from lmc.constraints.expression import NEVER, Expression
from lmc.constraints.json_schema.document import Document
from lmc.constraints.json_schema.layout import Layout
from lmc.constraints.json_schema.meaning import Meaning
from lmc.constraints.json_schema.reasons import reason
from lmc.constraints.json_schema.writer import Writer
from lmc.errors import ConstraintError

__all__ = ["expression_of_schema"]


def expression_of_schema(
    source: object, *, whitespace: str = "compact", waive: Collection[str] = ()
) -> tuple[Expression, bool]:
    """The texts that a JSON Schema allows, and whether a key could come twice in them.

    Args:
        source: a dictionary, JSON text, or a class that pydantic has a schema for.
        whitespace: "compact", "pretty" or "flexible".
        waive: keywords that are dropped where they cannot be honoured.

    Raises:
        ConstraintError: the schema is malformed, not supported, or nothing is valid.
        BudgetError: it takes too many states.
    """
    layout = Layout(whitespace)
    meaning = Meaning(Document(source), waive)
    try:
        formula = meaning.formula(meaning.document.root)
        writer = Writer(meaning, layout)
        found = writer.write(formula)
    except RecursionError:
        raise ConstraintError("the schema is nested too deeply") from None
    if found == NEVER:
        why = reason(meaning, formula)
        raise ConstraintError(
            f"nothing can match: {why}", hint="loosen one of the keywords that are named"
        )
    return found, writer.open
