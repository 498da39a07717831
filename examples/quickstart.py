"""Ask the model one question.

lmc run examples/quickstart.py
lmc run examples/quickstart.py --arg question="Name three colours."
python examples/quickstart.py
"""

import lmc


@lmc.jit
def quickstart(s, question: str = "What is the capital of France?"):
    s += lmc.user(question)
    s += lmc.assistant(lmc.gen("answer", max_tokens=64))


def main():
    print(quickstart.run()["answer"])


if __name__ == "__main__":
    main()
