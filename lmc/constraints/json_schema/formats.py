"""The values of `format`, as sets of texts.

Sources     RFC 3339 (date-time, duration), RFC 5321 (email), RFC 1123 and 5890 (hostname), RFC 2673
            (ipv4), RFC 4291 (ipv6), RFC 3986 and 3987 (uri, iri), RFC 4122 (uuid), RFC 6901
            (json-pointer), RFC 6570 (uri-template), OpenAPI (int32, int64, byte).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from lmc.constraints.expression import Alt, Both, Expression, Seq, Text
from lmc.constraints.json_schema.strings import Atom

__all__ = ["KNOWN_FORMATS", "format_atom", "format_range", "is_free_format"]

# These say how a value is shown or stored, and exclude none.
_FREE = frozenset({"binary", "double", "float", "password"})
_RANGES = {
    "int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1),
    "uint32": (0, 2**32 - 1), "uint64": (0, 2**64 - 1),
}  # fmt: skip


def is_free_format(name: object) -> bool:
    """Whether a format excludes nothing."""
    return name in _FREE


def format_range(name: object) -> tuple[int, int] | None:
    """The least and the greatest number of a format for numbers; None if it is no such."""
    return _RANGES.get(name) if isinstance(name, str) else None


@cache
def format_atom(name: str) -> Atom | None:
    """The texts of a format; None if it is not known."""
    make = _FORMATS.get(name)
    return Atom(f"format {name}", make()) if make else None


def _regex(pattern: str) -> Expression:
    from lmc.constraints.regex import parse

    return parse("(?a)" + pattern)


_DATE = (
    r"(?:(?!0000)[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    r"|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29)"
)
_YEARS = r"(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_DATE = _DATE.replace("(?!0000)[0-9]{4}", _YEARS)
_PART = r"(?:\.[0-9]{1,9})?"
_OFFSET = r"(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_TIME = rf"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]{_PART}{_OFFSET}"
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_LABEL = r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?)"
_ATOM = r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+"
_UUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"


def _time() -> Expression:
    # A leap second is the last one of a day in UTC; in local time that is another hour. Offsets by
    # whole hours are known here.
    leaps = [Seq((Text("23:59:60"), _regex(rf"{_PART}(?:[zZ]|[+-]00:00)")))]
    for hours in range(1, 24):
        leaps += [
            Seq((Text(f"{(23 + hours) % 24:02}:59:60"), _regex(_PART), Text(f"+{hours:02}:00"))),
            Seq((Text(f"{23 - hours:02}:59:60"), _regex(_PART), Text(f"-{hours:02}:00"))),
        ]
    return Alt((_regex(_TIME), *leaps))


def _ipv6() -> Expression:
    group = "[0-9a-fA-F]{1,4}"
    tail = f"(?:{group}:{group}|{_IPV4})"
    arms = [f"(?:{group}:){{6}}{tail}"]
    for after in range(5, -1, -1):
        # Up to 5 - after groups more may stand before the colons than behind them.
        before = f"(?:(?:{group}:){{0,{5 - after - 1}}}{group})?" if after < 5 else ""
        arms.append(f"{before}::(?:{group}:){{{after}}}{tail}")
    arms.append(f"(?:(?:{group}:){{0,5}}{group})?::{group}")
    arms.append(f"(?:(?:{group}:){{0,6}}{group})?::")
    return _regex("(?:" + "|".join(arms) + ")")


def _duration() -> Expression:
    time = r"T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
    day = "[0-9]+D"
    month = f"[0-9]+M(?:{day})?"
    year = f"[0-9]+Y(?:{month})?"
    return _regex(f"P(?:[0-9]+W|(?:{day}|{month}|{year})(?:{time})?|{time})")


def _hostname() -> Expression:
    # Labels with two dashes in the third place stand for others, by rules that are not regular.
    # Written out, since `(?!..--)` would have to be looked after at every later step.
    end, within = "[a-zA-Z0-9]", "[a-zA-Z0-9-]"
    third = f"{end}(?:{within}{{0,59}}{end})?|-{end}(?:{within}{{0,58}}{end})?"
    label = f"{end}(?:{end}|{within}(?:{third}))?"
    return Both((_regex(rf"{label}(?:\.{label})*"), _regex(r"[a-zA-Z0-9.-]{1,253}")))


def _email() -> Expression:
    local = Alt((
        _regex(rf"{_ATOM}(?:\.{_ATOM})*"),
        _regex(r'"(?:[ !#-\[\]-~]|\\[ -~])*"'),
    ))  # fmt: skip
    plain = _regex(rf"{_LABEL}(?:\.{_LABEL})*")
    literal = Seq((Text("["), Alt((_regex(_IPV4), Seq((Text("IPv6:"), _ipv6())))), Text("]")))
    return Seq((local, Text("@"), Alt((plain, literal))))


def _uri(*, relative: bool = False, international: bool = False) -> Expression:
    more = r"\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef\U00010000-\U000efffd" if international else ""
    free = rf"a-zA-Z0-9._~{more}-"
    escape = "%[0-9a-fA-F]{2}"
    subs = "!$&'()*+,;="
    char = rf"(?:[{subs}:@{free}]|{escape})"
    user = rf"(?:(?:[{subs}:{free}]|{escape})*@)?"
    name = rf"(?:[{subs}{free}]|{escape})*"
    future = rf"v[0-9a-fA-F]+\.[a-zA-Z0-9._~{subs}:-]+"
    literal = Seq((Text("["), Alt((_ipv6(), _regex(future))), Text("]")))
    authority = Seq((
        Text("//"), _regex(user), Alt((literal, _regex(name))), _regex("(?::[0-9]*)?"),
        _regex(f"(?:/{char}*)*"),
    ))  # fmt: skip
    absolute = _regex(f"/(?:{char}+(?:/{char}*)*)?")
    rootless = _regex(f"{char}+(?:/{char}*)*")
    ending = _regex(rf"(?:\?(?:{char}|[/?])*)?(?:#(?:{char}|[/?])*)?")
    scheme = _regex("[a-zA-Z][a-zA-Z0-9+.-]*:")
    nothing = Seq(())
    whole = Seq((scheme, Alt((authority, absolute, rootless, nothing)), ending))
    if not relative:
        return whole
    without_colon = _regex(rf"(?:[{subs}@{free}]|{escape})+(?:/{char}*)*")
    return Alt((whole, Seq((Alt((authority, absolute, without_colon, nothing)), ending))))


def _uri_template() -> Expression:
    literal = r"(?:[!#$&(-;=?-\[\]_a-z~\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef]|%[0-9a-fA-F]{2})"
    char = "(?:[a-zA-Z0-9_]|%[0-9a-fA-F]{2})"
    variable = rf"{char}(?:\.?{char})*(?::[1-9][0-9]{{0,3}}|\*)?"
    return _regex(rf"(?:{literal}|\{{[+#./;?&=,!@|]?{variable}(?:,{variable})*\}})*")


_POINTER = r"(?:/(?:[^~/]|~[01])*)*"
_FORMATS: dict[str, Callable[[], Expression]] = {
    "byte": lambda: _regex(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"),
    "base64url": lambda: _regex(
        r"(?:[A-Za-z0-9_-]{4})*(?:[A-Za-z0-9_-]{2}(?:==)?|[A-Za-z0-9_-]{3}=?)?"
    ),
    "date": lambda: _regex(_DATE),
    "date-time": lambda: Seq((_regex(f"{_DATE}[tT]"), _time())),
    "duration": _duration,
    "email": _email,
    "hostname": _hostname,
    "idn-email": lambda: _regex(r"[^\s@\x00-\x1f\x7f]+@[^\s@\x00-\x1f\x7f]+"),
    "ipv4": lambda: _regex(_IPV4),
    "ip-address": lambda: _regex(_IPV4),
    "ipv6": _ipv6,
    "ipvanyaddress": lambda: Alt((_regex(_IPV4), _ipv6())),
    "iri": lambda: _uri(international=True),
    "iri-reference": lambda: _uri(relative=True, international=True),
    "json-pointer": lambda: _regex(f"(?s:{_POINTER})"),
    "relative-json-pointer": lambda: _regex(rf"(?s:(?:0|[1-9][0-9]*)(?:#|{_POINTER}))"),
    "time": _time,
    "uri": _uri,
    "uri-reference": lambda: _uri(relative=True),
    "uri-template": _uri_template,
    "uuid": lambda: _regex(_UUID),
    **{
        f"uuid{n}": lambda n=n: _regex(  # type: ignore[misc]
            rf"[0-9a-fA-F]{{8}}-[0-9a-fA-F]{{4}}-{n}[0-9a-fA-F]{{3}}-[89abAB][0-9a-fA-F]{{3}}-"
            r"[0-9a-fA-F]{12}"
        )
        for n in (1, 3, 4, 5, 6, 7, 8)
    },
}
KNOWN_FORMATS = tuple(sorted({*_FORMATS, *_FREE, *_RANGES}))
