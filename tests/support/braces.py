"""The functions of a C++ or CUDA source, by its braces: no compiler, and none of what only a compiler could know."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: What braces do not count in: comments, literals, and directives with the lines that they go on in.
_HIDDEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"\((?:.*?)\)"|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Fa-f])\'(?:\\.|[^\'\\\n])+\''
    r"|^[ \t]*#(?:\\\n|[^\n])*",
    re.S | re.M,
)
#: A constructor's list of members, up to one that is initialised in braces.
_MEMBER = re.compile(r"\)\s*(?:noexcept\s*)?:(?!:).*[\w>]\s*$", re.S)


@dataclass
class _Brace:
    """An open one: "scope" of a namespace or a class, "function", or "block" for all that declares no functions."""

    kind: str
    name: str = ""
    line: int = 0
    head: str = ""  # what stands before it, where a declaration goes on behind it


def functions(source: str) -> list[tuple[str, int]]:
    """(name, lines) of each function, from its declaration's first line to its closing brace.

    Lambdas are part of the function that they stand in. A macro that goes over several lines is a function as well.

    Raises:
        ValueError: braces or parentheses do not match.
    """
    found = [
        (match[1], match[0].count("\n") + 1)
        for match in re.finditer(r"^[ \t]*#[ \t]*define (\w+)(?:\\\n|[^\n])*", source, re.M)
        if "\n" in match[0]
    ]
    text = _HIDDEN.sub(lambda match: '""' * (match[0][0] == '"') + "\n" * match[0].count("\n"), source)
    open_: list[_Brace] = []
    head, depth, begin, line = "", 0, 1, 1  # of the declaration under way
    for character in text:
        line += character == "\n"
        if not head.strip():
            begin = line
        depth += (character == "(") - (character == ")")
        if character == "{":
            open_.append(_classified(head, depth, begin, inside=open_[-1].kind if open_ else "scope"))
            head = ""
        elif character == "}":
            if not open_ or depth < 0:
                raise ValueError(f"line {line}: a brace or a parenthesis that nothing opens")
            closed = open_.pop()
            head = closed.head
            begin = closed.line if head else begin
            if closed.kind == "function":
                found.append((closed.name, line - closed.line + 1))
        elif character == ";" and (depth == 0 or (open_ and open_[-1].kind != "scope")):
            head = ""
        else:
            head += character
    if open_ or depth:
        raise ValueError(f"{len(open_)} braces and {depth} parentheses are not closed")
    return found


def _classified(head: str, depth: int, line: int, *, inside: str) -> _Brace:
    """The brace behind ``head``, which begins in that line."""
    if inside != "scope":
        return _Brace("block")
    if depth or _MEMBER.search(head):  # a default argument, or a member's initial value
        return _Brace("block", line=line, head=head + "{}")
    bare = head
    while bare != (bare := re.sub(r"\([^()]*\)|<[^<>]*>", " ", bare)):
        pass
    if re.search(r"\b(namespace|class|struct|union|enum)\b", bare) or re.fullmatch(r'\s*extern\s*""\s*', bare):
        return _Brace("scope")
    if "(" not in head or ("=" in bare and "operator" not in bare and not re.search(r"=\s*\[", bare)):
        return _Brace("block")
    attributes = r"\b__\w+__\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
    name = re.search(r"(\w+)\s*=\s*\[|(operator\W+?|[~\w]+)\s*\(", re.sub(attributes, "", head))
    return _Brace("function", (name[1] or name[2]) if name else "", line)
