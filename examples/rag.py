"""Answer from notes: the best one, and those of the others that help (RAG).

lmc run examples/rag.py --arg question="Who wrote the first computer program?"
lmc explain examples/rag.py
python examples/rag.py

The search is a tool, plain Python on a question that is not known while the program is traced. The
judgments run side by side behind one shared prompt; what was found useful is a branch of the graph.
"""

import re

import lmc

NOTES = [
    "Ada Lovelace published the first computer program in 1843, in notes on Babbage's machine.",
    "Emmy Noether proved in 1918 that every symmetry of a system conserves a quantity.",
    "Grace Hopper wrote one of the first compilers in 1952 and helped to shape COBOL.",
    "Marie Curie received Nobel prizes in physics, in 1903, and in chemistry, in 1911.",
    "Katherine Johnson calculated by hand the path of the first American in orbit, in 1962.",
]
QUESTION = "Who wrote the first computer program?"


def words(text):
    return set(re.findall(r"[a-z]{4,}", text.lower()))


@lmc.tool(pure=True)
def search(question: str, rank: int) -> str:
    return sorted(NOTES, key=lambda note: -len(words(note) & words(question)))[rank]


@lmc.jit
def rag(s, question: str = QUESTION, k: int = 3):
    best, *others = [search(question, rank) for rank in range(k)]
    readers = s.fork(k - 1)
    for reader, note in zip(readers, others, strict=True):
        reader += lmc.user(f"{note}\n\nDoes this help to answer the question: {question}")
        with reader.assistant():
            reader += lmc.select("helps", ["Yes", "No"])
    readers.join()
    with s.user():
        s += f"{best}\n"
        for note, helps in zip(others, s["helps"], strict=True):
            if helps == "Yes":  # compiled: a way for each set of notes that may be left
                s += f"{note}\n"
        s += f"\n{question}"
    s += lmc.assistant(lmc.gen("answer", max_tokens=48))


def main():
    out = rag.run()
    print("helps:", ", ".join(out["helps"]))
    print("answer:", out["answer"].strip())


if __name__ == "__main__":
    main()
