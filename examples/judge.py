"""Judge an essay: three judgments side by side, then a verdict of a fixed form.

lmc run examples/judge.py --arg essay=@examples/data/essay.txt
lmc compile examples/judge.py --emit mermaid
python examples/judge.py
"""

from pathlib import Path

import lmc

ESSAY = Path(__file__).parent / "data" / "essay.txt"


@lmc.jit
def judge(s, essay: str):
    with s.user():
        s += f"Essay: {essay}\nDoes it argue a point? Answer yes or no."
    with s.assistant():
        s += lmc.select("related", ["yes", "no"])
    if s["related"] == "no":  # compiled: both ways are in the graph
        return
    forks = s.fork(3)
    for f, dim in zip(forks, ["clarity", "originality", "evidence"], strict=True):
        with f.user():
            f += f"Judge its {dim} in one sentence."
        with f.assistant():
            f += lmc.gen("judgment", max_tokens=48, stop="\n")
    forks.join()  # s["judgment"] is now a list of three texts
    with s.user():
        s += "Judgments:\n" + "\n".join(s["judgment"]) + "\nGive the verdict as JSON."
    with s.assistant():
        s += lmc.gen("verdict", regex=r'\{"summary": "[\w ,.]{1,80}", "grade": "[ABCD][+-]?"\}')


def main():
    out = judge.run(essay=ESSAY.read_text(encoding="utf-8"))
    if out["related"] == "no":
        print("The essay argues no point.")
        return
    for judgment in out["judgment"]:
        print("-", judgment.strip())
    print(out["verdict"])


if __name__ == "__main__":
    main()
