"""Talk with the model for several turns; each reads what was said before from the cache.

lmc run examples/chat.py --stream
lmc run examples/chat.py --arg turns='["Name an animal.", "Where does it live?"]'
python examples/chat.py
"""

import lmc

TURNS = (
    "What do bees make?",
    "How do they make it?",
    "Thank you! Say goodbye to the bees in one sentence.",
)


@lmc.jit
def chat(s, turns: list[str] = TURNS):
    s += lmc.system("You are a helpful assistant.")
    for n, turn in enumerate(turns, 1):  # compiled once for each number of turns
        s += lmc.user(turn)
        s += lmc.assistant(lmc.gen(f"reply_{n}", max_tokens=48))


def main():
    out = chat.run()
    for n, turn in enumerate(TURNS, 1):
        print(f"you:   {turn}")
        print(f"model: {out[f'reply_{n}']}")


if __name__ == "__main__":
    main()
