"""LM programs to measure, as any user would write them. Texts are made for this benchmark.

Generations run to exactly `max_tokens` (`ignore_eos`), so that every engine does the same work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lmc.api import Program, jit
from lmc.frontend.dsl import State, gen, select

__all__ = ["WORKLOADS", "Workload"]


@dataclass(frozen=True)
class Workload:
    """A program and the rows that it is measured on."""

    name: str
    about: str
    program: Program
    rows: tuple[dict[str, Any], ...]


_DESKS = (" Accounts", " Repairs", " Delivery", " New customers")
_MAIL = (
    ("The amount on my invoice is not the one that we agreed upon in the spring.", 0),
    ("Since yesterday the lamp on the front of the machine blinks and it makes no coffee.", 1),
    ("The driver left the box with a neighbour who has since moved away.", 2),
    ("We run a small bakery and would like to know what forty of your trays would cost.", 3),
    ("Please send the money for the second chair back to the card that I paid with.", 0),
    ("The door of the oven does not close any more, a screw seems to be missing.", 1),
    ("Nobody rang the bell, but the note says that delivery was tried twice.", 2),
    ("Is there a discount for schools, and do you also sell to other countries?", 3),
    ("My bank says that you tried to take the same sum three times last Friday.", 0),
    ("After I put in the new battery the clock runs backwards every other hour.", 1),
    ("Half of the glasses arrived broken and the other half are the wrong size.", 2),
    ("A friend told me about your boats; may I see one before I decide?", 3),
    ("Why does the bill for March name a house in which I have never lived?", 0),
    ("The printer pulls in two sheets at a time and then stops with a sigh.", 1),
    ("Can the parcel wait at the post office until I am back from my holiday?", 2),
    ("Our club has sixty members and wants one shirt for each, with a name on it.", 3),
    ("I gave notice in time and yet the subscription was charged once more.", 0),
    ("When it rains, water runs out of the handle of the umbrella and into my sleeve.", 1),
    ("You sent me the blue one, although the order clearly says green.", 2),
    ("What would it take to become a dealer of your bicycles in our town?", 3),
    ("The voucher from my aunt is refused although it is valid for two more years.", 0),
    ("The left speaker hums as soon as the fridge in the next room switches on.", 1),
)
_MORE_MAIL = (
    "I was asked to pay a fee of nine euros, and nobody can tell me for what.",
    "The scale shows four kilos when nothing lies on it.",
    "My order has been on the way for three weeks and the page says nothing new.",
    "Which of your tents would you recommend for two people and a large dog?",
    "Please correct the name of our company on the last two invoices.",
    "The zip of the bag opens by itself whenever I sit down.",
    "The shelf came without the screws that the manual speaks of.",
    "Do you offer courses, and how far ahead do I have to book one?",
    "You took the money twice, once in dollars and once in pounds.",
    "The screen turns green when I move the cable.",
    "Could the table be carried up to the third floor on Thursday?",
    "We think of fitting out a hotel with your lamps; whom can I talk to?",
    "The refund that I was promised in May has not arrived.",
    "The kettle switches off before the water is warm.",
    "The parcel is open at one side and smells of fish.",
    "I would like to buy a present for my brother, who has everything.",
)


@jit
def fewshot(s: State, message: str) -> None:
    """Sort a letter, after many sorted ones."""
    s += (
        "Every letter that reaches our house goes to one of four desks. Accounts looks after bills "
        "and refunds. Repairs looks after things that do not work. Delivery looks after parcels. "
        "New customers answers people who think of buying.\n\n"
    )
    for letter, desk in _MAIL:
        s += f"Letter: {letter}\nDesk:{_DESKS[desk]}\n\n"
    s += f"Letter: {message}\nDesk:"
    s += select("desk", _DESKS)


_ESSAY = (
    "I am asked again and again why our town should keep its {s}. I will give three answers. The "
    "first is that {s} are among the few things that belong to all of us. Whoever was born here "
    "remembers them, and whoever came later was taken there in the first week by somebody who "
    "wanted to be kind. The second answer is about money. It is true that {s} cost something every "
    "year, and that the sum has grown. But the council has counted what they bring as well, and "
    "whoever reads its report to the end will find that for every coin that was spent more than one "
    "came back, if in other pockets. Figures of that sort are never quite certain, and one should "
    "ask who added them up; still, nobody has shown them to be wrong. The third answer is the one "
    "that I care about. With {s} we learn to wait, to share and to leave a place as we found it. "
    "There are few schools for that. I know the other side. Not everybody lives near enough, some "
    "have no use for them at all, and where nobody feels responsible they fall into disrepair. Yet "
    "what is badly kept should be kept better and not be given away. A town that has closed its {s} "
    "does not get them back, and it learns too late what it had."
)
_SIDES = ("clarity", "evidence", "originality")


@jit
def judge(s: State, subject: str) -> None:
    """Judge an essay from three sides side by side, then as a whole."""
    s += "Essay:\n" + _ESSAY.replace("{s}", subject) + "\n\n"
    forks = s.fork(len(_SIDES))
    for f, side in zip(forks, _SIDES, strict=True):
        f += f"A short opinion on the {side} of this essay, in two sentences: The"
        f += gen("opinion", max_tokens=32, ignore_eos=True)
    forks.join()
    for side, opinion in zip(_SIDES, s["opinion"], strict=True):
        s += f"On {side}: The{opinion}\n\n"
    s += "All in all, the mark for this essay is"
    s += gen("mark", max_tokens=16, ignore_eos=True)


_SUMS = (
    (
        "A gardener plants 5 rows of 8 tulips, and mice eat 7 of them. How many are left?",
        "5 rows of 8 tulips are 5 * 8 = 40 tulips. 40 - 7 = 33. The answer is 33.",
    ),
    (
        "Mila has 36 stickers. She gives a third to her sister and 4 to a friend. How many remain?",
        "A third of 36 is 12. 36 - 12 = 24 and 24 - 4 = 20. The answer is 20.",
    ),
    (
        "A cinema has 14 rows of 9 seats. 88 tickets are sold. How many seats stay empty?",
        "There are 14 * 9 = 126 seats. 126 - 88 = 38. The answer is 38.",
    ),
    (
        "Jon runs 4 kilometres on each of 6 days and 10 on the seventh. How far is that?",
        "6 days of 4 kilometres are 24. 24 + 10 = 34. The answer is 34.",
    ),
    (
        "A ribbon of 75 centimetres is cut into pieces of 8. How much is left over?",
        "9 pieces take 9 * 8 = 72 centimetres. 75 - 72 = 3. The answer is 3.",
    ),
    (
        "Pens cost 2 coins and folders 5. What do 6 pens and 3 folders cost together?",
        "6 pens cost 12 coins and 3 folders cost 15. 12 + 15 = 27. The answer is 27.",
    ),
    (
        "A hen lays 5 eggs a week. How many eggs do 7 hens lay in 3 weeks?",
        "In a week 7 hens lay 7 * 5 = 35 eggs. 3 * 35 = 105. The answer is 105.",
    ),
)


@jit
def selfcons(s: State, question: str, samples: int = 8) -> None:
    """Draw several solutions of one problem."""
    s += "Work out each problem step by step and end with the answer.\n\n"
    for problem, solution in _SUMS:
        s += f"Problem: {problem}\nSolution: {solution}\n\n"
    s += f"Problem: {question}\nSolution:"
    forks = s.fork(samples)
    forks += gen("solution", max_tokens=32, temperature=0.8, ignore_eos=True)
    forks.join()


_TALKS = (
    ("I would like to grow herbs. Which should I begin with?", "How much light does it need?",
     "Can it live on a balcony?", "And in winter?"),
    ("Tell me something about whales.", "How deep do they go?", "Do they sleep?",
     "What would you ask one?"),
    ("My bicycle makes a clicking sound.", "Only when I go uphill.", "The chain is new.",
     "Thank you, what should I look at next?"),
    ("Help me to plan an evening in Lisbon.", "I do not eat fish.", "Where can I hear music?",
     "How do I get home late?"),
)  # fmt: skip


@jit
def chat(s: State, turns: list[str]) -> None:
    """Talk for several turns."""
    s.system("You are a kind assistant and answer in a sentence or two.")
    for n, turn in enumerate(turns):
        s.user(turn)
        s.assistant(gen(f"reply_{n}", max_tokens=32, ignore_eos=True))


_PEOPLE = (
    ("Nora Lindholm", "Turku", "is an engineer who repairs lighthouses", "sailing"),
    ("Pavel Horak", "Plzen", "has been a teacher of drawing for twenty years", "collecting maps"),
    ("Leila Mansour", "Sfax", "works as a nurse in the children's ward", "playing the lute"),
    ("Duncan Reid", "Oban", "is a farmer with a hundred sheep and one cow", "long walks"),
    ("Sofia Ricci", "Parma", "flies as a pilot between small islands", "baking bread"),
    ("Hugo Martins", "Braga", "is the chef of a railway restaurant", "chess"),
    ("Aiko Mori", "Kobe", "is an engineer and designs bridges", "photography"),
    ("Ben Carter", "York", "is a teacher of music at two schools", "rowing"),
)
_RECORD = (
    r'\{"name": "[A-Z][a-z]{2,11} [A-Z][a-z]{2,11}", "age": [1-9][0-9], "city": "[A-Z][a-z]{2,13}", '
    r'"job": "(engineer|teacher|nurse|farmer|pilot|chef)", "hobby": "[a-z]{3,12} ?[a-z]{0,12}", '
    r'"score": [0-9]\.[0-9]\}'
)


@jit
def json(s: State, note: str) -> None:
    """Fill in a record of fixed form."""
    s += (
        "Read the note, then write down the record: one line of JSON with name, age, city, job, "
        f"hobby and score, in this order.\n\nNote: {note}\n\nRecord: "
    )
    s += gen("record", max_tokens=96, regex=_RECORD)


def _note(number: int) -> str:
    name, city, work, hobby = _PEOPLE[number % len(_PEOPLE)]
    first = name.split()[0]
    return (
        f"{name} grew up by a river and came to {city} at twenty. Now {27 + 6 * (number % 8)} years "
        f"old, {first} {work}. In the evening there is time for {hobby}. Asked for a mark between "
        f"0.0 and 9.9, a friend gave {first} a {5 + number % 4}.{number % 10} at once."
    )


def _rows(name: str, values: tuple[Any, ...]) -> tuple[dict[str, Any], ...]:
    return tuple({name: value} for value in values)


_QUESTIONS = (
    "A shop has 48 cups. It sells 13 on Monday and twice as many on Tuesday. How many are left?",
    "Six friends pay 9 coins each for a cart that costs 50. How many coins do they get back?",
    "A ferry carries 64 people. 19 get off and 23 get on. How many are on it now?",
    "Ida saves 7 coins a week for 9 weeks and buys a kite for 28. How many coins are left?",
)

WORKLOADS: dict[str, Workload] = {
    w.name: w
    for w in (
        Workload(
            "fewshot",
            "16 letters, 22 sorted ones before each, 4 choices",
            fewshot,
            _rows("message", _MORE_MAIL),
        ),
        Workload(
            "judge",
            "4 essays, 3 opinions side by side, a mark",
            judge,
            _rows("subject", ("markets", "trams", "ponds", "benches")),
        ),
        Workload(
            "selfcons",
            "4 problems, 8 samples each, 7 solved ones before",
            selfcons,
            _rows("question", _QUESTIONS),
        ),
        Workload("chat", "4 talks of 4 turns", chat, _rows("turns", tuple(map(list, _TALKS)))),
        Workload(
            "json",
            "8 notes, a record by regular expression",
            json,
            _rows("note", tuple(map(_note, range(8)))),
        ),
    )
}
