"""Refuses packages that are older than jaxgemm's metadata asks for: pip is told not to look, or run again, at times."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version


def _release(text: str) -> tuple[int, ...]:
    """The numbers at a version's beginning."""
    return tuple(int(x) for x in re.findall(r"\d+", re.split(r"[^\d.]", text)[0]))


def check(requirements: Iterable[str]) -> None:
    """Raise ImportError if a package is installed that is older than required."""
    for requirement in requirements:
        if not (found := re.fullmatch(r"(\w+)>=([\d.]+)", requirement)):
            continue  # of an extra
        try:
            installed = version(found[1])
        except PackageNotFoundError:
            continue  # its import says that, or finds it in another way
        if _release(installed) < _release(found[2]):
            raise ImportError(
                f"jaxgemm needs {requirement}, and {found[1]} {installed} is installed. Install a newer one: "
                f"pip install '{requirement}'",
                name=found[1],
            )


with suppress(PackageNotFoundError):  # where it is not installed, jaxgemm._runtime says so
    check(requires("jaxgemm") or ())
