"""Multiple choice with five worked examples of the same subject (MMLU).

lmc run examples/few_shot.py --batch examples/data/mmlu.jsonl -o answers.jsonl --stats stats.json
python examples/few_shot.py

The examples of a subject are the same for all its rows: they are computed once, however the rows
are ordered. `cached_tokens` in stats.json tells how much that was.
"""

import json
from pathlib import Path

import lmc

DATA = Path(__file__).parent / "data"
LETTERS = ["A", "B", "C", "D"]


def rows_of(name):
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]


def asked(question, choices):
    lines = [f"\n({x}) {text}" for x, text in zip(LETTERS, choices, strict=True)]
    return question + "".join(lines) + "\nAnswer: ("


SHOTS = {}  # by subject: its examples as text
for row in rows_of("mmlu_shots.jsonl"):
    shot = asked(row["question"], row["choices"]) + row["answer"] + ")\n\n"
    SHOTS[row["subject"]] = SHOTS.get(row["subject"], "") + shot


@lmc.jit
def few_shot(s, subject: str, question: str, choices: list[str]):
    for name, shots in SHOTS.items():
        if subject == name:  # compiled: a way for each subject, each with its own prefix
            s += f"Multiple choice questions about {name.replace('_', ' ')}.\n\n" + shots
            break
    s += asked(question, choices)
    s += lmc.select("answer", LETTERS)


def main():
    right = json.loads((DATA / "mmlu_answers.json").read_text(encoding="utf-8"))
    outs = few_shot.run_batch(rows_of("mmlu.jsonl"), progress=True)
    score = sum(out["answer"] == letter for out, letter in zip(outs, right, strict=True))
    print(f"{score} of {len(outs)} right")


if __name__ == "__main__":
    main()
