"""Solve a word problem several times and let the answers vote (Wang et al., 2022).

lmc run examples/self_consistency.py
lmc run examples/self_consistency.py --batch examples/data/gsm8k.jsonl --seed 1
python examples/self_consistency.py

The branches share the prompt and run side by side, each with random numbers of its own. The vote is
plain Python on texts that are not known yet: compiled, it is a tree of comparisons. (The default
model is small: do not expect it to be good at this.)
"""

import lmc

QUESTION = "Tom has 3 apples and buys 5 more. How many apples does he have now?"


def most_frequent(texts):
    groups = []  # [text, how often], in the order in which they appear
    for text in texts:
        for group in groups:
            if group[0] == text:
                group[1] += 1
                break
        else:
            groups.append([text, 1])
    return max(groups, key=lambda group: group[1])[0]


@lmc.jit
def self_consistency(s, question: str = QUESTION, n: int = 5):
    s += lmc.user(f"{question}\nThink step by step in a few short sentences.")
    branches = s.fork(n)
    for branch in branches:
        with branch.assistant():
            branch += lmc.gen("reasoning", max_tokens=96, temperature=0.5)
            branch += "\nThe answer is "
            branch += lmc.gen("answer", max_tokens=6, regex="[0-9]{1,5}")
    branches.join()
    return most_frequent(s["answer"])


def main():
    out = self_consistency.run()
    print("answers:", ", ".join(out["answer"]))
    print("vote:   ", out.value)


if __name__ == "__main__":
    main()
