from lmc.ir import parse
from lmc.ir.analysis import Cost, calls_on_ways, cost, definitions, released, uses
from lmc.ir.printer import name_values

PROGRAM = parse("""program @p(%x: text) {
  %s0 = lm.start
  %s1 = lm.extend %s0, "12345", %x
  %s2, %a = lm.gen %s1 {name = "a", max_tokens = 7}
  %s3 = lm.extend %s1, "abc"
  %b0 = text.eq %a, %a
  flow.if %b0 {
    %s4, %b = lm.gen %s3 {name = "b", max_tokens = 100}
    %s5, %c = lm.gen %s3 {name = "c", max_tokens = 1}
    lm.release %s5
    ret %s4
  } else {
    %s6, %d = lm.select %s3, "x" {name = "d"}
    ret %s6, {d = %d}
  }
}
""")
NAMES = name_values(PROGRAM)


def test_uses_and_definitions_see_inner_regions() -> None:
    counted = {NAMES[v]: n for v, n in uses(PROGRAM.body).items()}
    assert counted["a"] == 2
    assert counted["s3"] == 3
    assert {NAMES[v]: n.op.mnemonic for v, n in definitions(PROGRAM).items()}["d"] == "lm.select"
    assert {NAMES[v] for v in released(PROGRAM.body)} == {"s5"}


def test_the_ways_of_an_if_do_not_add_up() -> None:
    calls = {NAMES[v]: n for v, n in calls_on_ways(PROGRAM.body).items() if n}
    assert calls == {"s0": 1, "s1": 2, "s3": 2}


def test_cost_bounds_all_ways() -> None:
    assert cost(PROGRAM) == Cost(
        ways=2,
        calls=(2, 3),
        generated_tokens=108,
        known_characters=(8, 8),
        repeated_characters=(5 + 8, 5 + 8 + 8),
    )
