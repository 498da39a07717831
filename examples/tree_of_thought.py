"""Plans, several solutions of each, and a choice among their answers (Yao et al., 2023).

lmc run examples/tree_of_thought.py
lmc run examples/tree_of_thought.py --batch examples/data/gsm8k.jsonl --seed 1
lmc compile examples/tree_of_thought.py --emit mermaid
python examples/tree_of_thought.py

Branches of branches: every plan is read once from the cache by all that follow it, and the whole
tree of a question is one graph. (The default model is small: do not expect it to be good at this.)
"""

import lmc

QUESTION = "Tom has 3 apples and buys 5 more. How many apples does he have now?"


@lmc.jit
def tree_of_thought(s, question: str = QUESTION, width: int = 2):
    s += lmc.user(f"{question}\nFirst make a plan of one sentence.")
    plans = s.fork(width)
    for plan in plans:
        with plan.assistant():
            plan += "Plan: "
            plan += lmc.gen("plan", max_tokens=32, stop="\n", temperature=0.7)
        plan += lmc.user("Follow the plan.")
        solutions = plan.fork(width)
        for solution in solutions:
            with solution.assistant():
                solution += lmc.gen("steps", max_tokens=64, temperature=0.7)
                solution += "\nThe answer is "
                solution += lmc.gen("answer", max_tokens=6, regex="[0-9]{1,5}")
        solutions.join()
    plans.join()
    answers = [answer for of_plan in s["answer"] for answer in of_plan]
    s += lmc.user(f"These answers were found: {', '.join(answers)}. Which one is right?")
    with s.assistant():
        s += "The right answer is "
        s += lmc.gen("best", max_tokens=6, regex="[0-9]{1,5}")


def main():
    out = tree_of_thought.run()
    for plan, answers in zip(out["plan"], out["answer"], strict=True):
        print(f"{', '.join(answers)}: {plan.strip()}")
    print("best:", out["best"])


if __name__ == "__main__":
    main()
