"""An agent that looks things up and calculates until it can answer (ReAct, arXiv:2210.03629).

lmc run examples/agent.py --arg who="Emmy Noether"
lmc compile examples/agent.py --emit mermaid
python examples/agent.py
"""

import lmc

YEARS = {"Ada Lovelace": (1815, 1852), "Emmy Noether": (1882, 1935), "Grace Hopper": (1906, 1992)}
SHOT = """\
Question: How old did {0} become?
Action: search: {0}
Observation: {0} was born in {1} and died in {2}.
Action: subtract: {2} - {1}
Observation: {3}
Action: finish: {3}

"""
SHOTS = SHOT.format("Ada Lovelace", 1815, 1852, 37) + SHOT.format("Emmy Noether", 1882, 1935, 53)


@lmc.tool(pure=True)
def search(name: str) -> str:
    born, died = YEARS.get(name.strip(), ("an unknown year", "another one"))
    return f"{name.strip()} was born in {born} and died in {died}."


@lmc.tool(pure=True)
def subtract(numbers: str) -> int:
    left, right = numbers.split(" - ")
    return int(left) - int(right)


@lmc.jit
def agent(s, who: str = "Grace Hopper"):
    s += SHOTS + f"Question: How old did {who} become?\n"
    for _ in range(4):
        s += "Action:"
        s += lmc.select("action", [" search:", " subtract:", " finish:"], method="greedy_token")
        if s["action"] == " finish:":
            break
        if s["action"] == " search:":
            s += lmc.gen("name", regex=" [A-Z][a-z]+ [A-Z][a-z]+", max_tokens=12)
            s += f"\nObservation: {search(s['name'])}\n"
        else:
            s += lmc.gen("numbers", regex=r" \d{4} - \d{4}", max_tokens=12)
            s += f"\nObservation: {subtract(s['numbers'])}\n"
    s += lmc.gen("answer", stop="\n", max_tokens=8)


def main():
    print(agent.run().text.removeprefix(SHOTS))


if __name__ == "__main__":
    main()
