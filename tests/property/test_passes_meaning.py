"""Every pass, and every pipeline, keeps the meaning of every program."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from lmc.errors import RunError
from lmc.ir import Program, verify
from lmc.ir.interpret import HashModel, Meaning, arguments_of, interpret
from lmc.ir.ops import PARTIAL, If, Pure
from lmc.passes import PASSES, PIPELINES
from lmc.passes.hoist_prefix import HoistPrefix
from lmc.passes.manager import PassManager
from lmc.passes.reorder_unordered import ReorderUnordered
from lmc.textops import PURE
from tests.property.ir_programs import programs

models = st.builds(
    HashModel,
    seed=st.integers(0, 99),
    answers=st.sampled_from([(), ("yes", "no"), ("", " a,b ", "3")]),
)
keeping = [cls for cls in PASSES if cls is not ReorderUnordered]
pipelines = [*keeping, *(PassManager(p) for p in dict.fromkeys(PIPELINES.values())), HoistPrefix(1)]


def meaning(program: Program, model: HashModel) -> Meaning | None:
    """What the program gives, or None if it fails."""
    try:
        arguments = arguments_of(program, ["some text", "3"][: len(program.params)])
        return interpret(program, arguments, model)
    except RunError:
        return None


# All pipelines see each program: drawing it takes longer than running them.
@settings(max_examples=150, deadline=None)
@given(program=programs(), model=models)
def test_meaning_is_kept_and_a_second_time_changes_nothing(
    program: Program, model: HashModel
) -> None:
    means = meaning(program, model)
    for pipeline in pipelines:
        pass_ = pipeline() if isinstance(pipeline, type) else pipeline
        after = pass_.run(program)  # type: ignore[attr-defined]
        verify(after)
        assert meaning(after, model) == means, f"{pipeline} changes what it means"
        if not isinstance(pass_, PassManager):  # each pass is idempotent, a pipeline need not be
            assert pass_.run(after) is after, f"{pipeline} again"  # type: ignore[attr-defined]
        if str(after) == str(program):
            assert after is program, f"{pipeline} gives a copy"


@settings(deadline=None)
@given(data=st.data())
def test_only_the_functions_known_to_raise_do(data: st.DataObject) -> None:
    kinds = {"text": st.text(max_size=5), "int": st.integers(), "bool": st.booleans()}
    kinds["float"] = st.floats()
    kinds["value"] = st.none() | st.lists(kinds["text"]) | st.dictionaries(kinds["text"], st.none())
    kinds["any"] = st.one_of(*kinds.values())
    kinds |= {"list<text>": st.lists(kinds["text"], max_size=3)}
    fn = data.draw(st.sampled_from(sorted(set(PURE) - PARTIAL)))
    takes = [kind for t in PURE[fn].takes for kind in [t.removesuffix("*")] * (1 + t.endswith("*"))]
    PURE[fn].compute(*(data.draw(kinds[kind]) for kind in takes))


@settings(deadline=None)
@given(program=programs())
def test_reordering_only_permutes_texts_that_the_program_left_open(program: Program) -> None:
    after = ReorderUnordered().run(program)
    verify(after)
    assert ReorderUnordered().run(after) is after
    for old, new in zip(program.walk(), after.walk(), strict=True):
        if isinstance(old.op, Pure) and old.op.fn == "text.unordered":
            separator, *texts = old.op.args
            assert isinstance(new.op, Pure)
            assert Counter(new.op.args[::2]) == Counter(texts)
            assert set(new.op.args[1::2]) <= {separator}
        elif not isinstance(old.op, If):
            assert new.op == old.op
