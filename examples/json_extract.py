"""Records out of texts: a pydantic model as a schema, and a text with holes as a pattern.

lmc run examples/json_extract.py:city --batch examples/data/cities.jsonl -o cities.jsonl
lmc explain examples/json_extract.py:card
python examples/json_extract.py

Every answer is valid, whatever the model. Text that only one way can go on, such as names of
fields, is not asked of it: the last line of the output tells how much that was.
"""

import json
import re
from pathlib import Path

from pydantic import BaseModel, Field

import lmc

DATA = Path(__file__).parent / "data" / "cities.jsonl"
CARD = re.compile(
    r"name: [^\n,]{2,30}, country: [A-Z][A-Za-z. ]{2,29}, "
    r"size: (?:small|large|huge) \([0-9]{1,2}(?:,[0-9]{3}){1,2} people\)"
)


class City(BaseModel):
    name: str = Field(max_length=30)
    country: str = Field(pattern="^[A-Z][A-Za-z. ]{2,29}$")
    population: int = Field(ge=1_000, le=50_000_000)
    capital: bool


@lmc.jit
def city(s, document: str):
    s += lmc.user(f"{document}\n\nFill in name, country, population, and whether it is a capital.")
    with s.assistant():
        s += lmc.gen("city", max_tokens=60, json_schema=City)


@lmc.jit
def card(s, document: str):
    s += lmc.user(f"{document}\n\nGive the name of the city, its country and its size.")
    with s.assistant():
        s += lmc.gen("card", max_tokens=60, regex=CARD.pattern)


def main():
    rows = [json.loads(x) for x in DATA.read_text("utf-8").splitlines()]
    cities, cards = city.run_batch(rows), card.run_batch(rows)
    for one, other in zip(cities, cards, strict=True):
        print(City.model_validate_json(one["city"]), "|", CARD.fullmatch(other["card"])[0])
    metas = [o.meta("city") for o in cities] + [o.meta("card") for o in cards]
    made, forced = sum(m.completion_tokens for m in metas), sum(m.forced_tokens for m in metas)
    print(f"{len(metas)} valid; {forced} of {made} tokens were forced")


if __name__ == "__main__":
    main()
