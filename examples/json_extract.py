"""Records out of texts: a template with gens in it, and a pydantic model as a schema.

lmc run examples/json_extract.py:card --batch examples/data/cities.jsonl -o cards.jsonl
lmc explain examples/json_extract.py:city
python examples/json_extract.py

Every answer is valid, whatever the model. Text that only one way can go on, such as names of
fields, is not asked of it: the last line of the output tells how much that was.
"""

import json
from pathlib import Path

from pydantic import BaseModel, Field

import lmc

DATA = Path(__file__).parent / "data" / "cities.jsonl"
COUNTRY = r"[A-Z][A-Za-z. ]{2,29}"
PEOPLE = r"[1-9][0-9]{0,2}(?:,[0-9]{3}){1,2}"


@lmc.jit
def card(s, document: str):
    s += lmc.user(f"{document}\n\nGive the country, the size and the population of the city.")
    with s.assistant():
        country, people = lmc.gen("country", 16, regex=COUNTRY), lmc.gen("people", 16, regex=PEOPLE)
        size = lmc.gen("size", 4, choices=["small", "large", "huge"])
        s += "Country: " + country + "\nSize: " + size + "\nPopulation: " + people + "."


class City(BaseModel):
    name: str = Field(max_length=30)
    country: str = Field(pattern=f"^{COUNTRY}$")
    population: int = Field(ge=1_000, le=50_000_000)
    capital: bool


@lmc.jit
def city(s, document: str):
    s += lmc.user(f"{document}\n\nFill in name, country, population, and whether it is a capital.")
    with s.assistant():
        s += lmc.gen("city", max_tokens=60, json_schema=City)


def main():
    rows = [json.loads(x) for x in DATA.read_text("utf-8").splitlines()]
    cards, cities = card.run_batch(rows), city.run_batch(rows)
    for one, other in zip(cards, cities, strict=True):
        print(f"{one['country']}, {one['size']}: {one['people']}", "|", end=" ")
        print(City.model_validate_json(other["city"]))
    metas = [o.meta(name) for o in (*cards, *cities) for name in o.variables]
    made, forced = sum(m.completion_tokens for m in metas), sum(m.forced_tokens for m in metas)
    print(f"{len(rows)} cards and {len(rows)} cities; {forced} of {made} tokens were forced")


if __name__ == "__main__":
    main()
