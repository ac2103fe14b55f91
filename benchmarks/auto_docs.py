"""Writes docs/auto.md, which says what `auto` chooses, from its rules: python benchmarks/auto_docs.py"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from jaxgemm.choice import rules, rules_hopper
from jaxgemm.choice.resolve import Candidate, Choice
from jaxgemm.choice.rules import Question, Reason, Rule, Section
from jaxgemm.epilogue import Epilogue
from jaxgemm.explain import Product
from jaxgemm.kernels import H200, configuration, find_kernel
from jaxgemm.problem import plan
from jaxgemm.products.kind import Decision
from jaxgemm.roofline import KNOWN_DEVICES, floor

DOCS = Path(__file__).resolve().parent.parent / "docs/auto.md"

_HEAD = """\
# What `auto` chooses

<!-- Written by `python benchmarks/auto_docs.py` from rules.py, rules_hopper.py and eight_bits.py of jaxgemm/choice -->

`kernel="auto"` takes one of our kernels where it should be faster than XLA's product on its default path, which is what
`jnp.dot` runs, and leaves everything else to XLA. It decides while a program is compiled, by the product's extents,
types, layout, batch, epilogue and precision, and by the chip, in this order:

1. What was **asked for** is taken, and some products are not `auto`'s to decide (first table).
2. **Facts** leave a product to XLA (second table).
3. A **measurement** of this very product on this chip, if `jaxgemm/tuning` holds one, names what was the fastest.
4. Each kernel that `auto` chooses from says by its cost model which configuration it would run and how long that takes.
   The least of these times is *ours*. The kernels, by operands ([arithmetics](precision.md) in brackets):

{contenders}

5. **Rules** are read in order, and the first whose condition holds decides (the tables after that). The last compares
   ours with the time that XLA's product should take, which is modelled for operands whose rows are no multiple of 16
   bytes (`jaxgemm/choice/xla_times.py`). Of aligned rows XLA's product is one of cuBLAS's many kernels: the rules say
   where XLA does more than that one kernel, or where that one is not the best.

A rule names the result file that it was read off. `python benchmarks/choices.py` replays the stored timings through the
rules: what they lose against the faster side of every product, which rule decided how many, and what would be lost
without it.

m, n and k are rows, columns and the length of the sums. Times in rules are what the cost model expects of our kernel.
Rows are aligned if they begin at multiples of 16 bytes.
"""

_EXPLAIN = """\
## Reading `explain`

`print(jaxgemm.explain(function, *args))` says what decided. An example, whose figures are made up:

```
{example}
```

- **kernel**: who runs the product, and what the rule says.
- **rule**: its name, as on this page.
- **expected**: the time that the best of our kernels expects, and the time that XLA's product should take, whichever of
  them was taken; "not modelled" where no model says. Of a gated pair: one launch, and two products with what follows.
- **options**: the configuration that runs, as keyword arguments of `gemm`.
- **parts**: what the expected time is made of: `split` adds partial results, `copies` aligns or splits operands.
- **candidates**: the best configurations by the cost model, each with its expected time and the options in which it
  differs from the one that runs.

[Reading explain](jax.md#reading-explain) has the other lines.
"""


def text() -> str:
    """The page."""
    by_kernels: dict[tuple[str, ...], list[str]] = {}
    for (*types, arithmetic), known in rules.CONTENDERS.items():
        operands = " × ".join(dict.fromkeys(types)) + ("" if arithmetic == "plain" else f" ({arithmetic})")
        by_kernels.setdefault(known.kernels, []).append(operands)
    kernels = "\n".join(
        f"   - {' and '.join(f'`{name}`' for name in names)}: {', '.join(of)}" for names, of in by_kernels.items()
    )
    parts = [
        _filled(_HEAD, contenders=kernels),
        "## Asked for, and what is not `auto`'s to decide\n",
        _table(rules.REASONS),
        "## Facts\n",
        _table(rules.FACTS.rules),
        "## Rules for Hopper\n",
        *(_section(section) for section in rules_hopper.SECTIONS),
        _filled(_EXPLAIN, example=_example()),
    ]
    return "\n".join(parts)


def _filled(template: str, **values: str) -> str:
    for name, value in values.items():
        template = template.replace(f"{{{name}}}", value)
    return template


def _section(section: Section) -> str:
    return f"### {section.title}\n\n{_table(section.rules)}"


def _table(reasons: Sequence[Reason]) -> str:
    columns = {
        "name": [f"`{reason.name}`" for reason in reasons],
        "runs": [reason.side.value if isinstance(reason, Rule) else "" for reason in reasons],
        "what it says": [re.sub(r"\{q\.(\w+)[^}]*\}", r"*\1*", reason.says) for reason in reasons],
        "read off": [f"[{x}](../benchmarks/results/{x})" if (x := reason.evidence) else "" for reason in reasons],
    }
    filled = {name: cells for name, cells in columns.items() if any(cells)}
    rows = [tuple(filled), ("---",) * len(filled), *zip(*filled.values(), strict=True)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def _example() -> str:
    """What explain prints of a product whose figures are these, whatever the cost model of the day says."""
    m, n, k = 2048, 2049, 2051
    view = plan((m, k), (k, n), (((1,), (0,)), ((), ())))
    problem = view.problem(("bfloat16",) * 3, Epilogue())
    row = find_kernel("sm90")
    chosen, other = (
        configuration(row, tuple({"tile_m": 128, "tile_n": 128, "schedule": 2, **options}.items()))
        for options in ({"cluster_m": 2, "cluster_n": 1}, {"cluster_m": 1, "cluster_n": 2})
    )
    parts = (("launch", 2.1), ("main_loop", 30.2), ("epilogue", 2.4), ("copies", 4.1))
    considered = (Candidate(chosen, 38.8, parts), Candidate(other, 39.2))
    rule, _ = rules_hopper.decide(Question(problem, H200, None, 38.8, 157.5))
    choice = Choice(row, chosen, 8663552, rule.says, considered, rule.name, row.name, 38.8, 157.5)
    least = floor(m, n, k, limits=KNOWN_DEVICES[H200.name], a="bfloat16", b="bfloat16", d="bfloat16")
    operands = f"bfloat16[{m},{k}] x bfloat16[{k},{n}]"
    return str(Product(operands, "bfloat16", Decision(choice, problem, view), Epilogue(), None, least, 1))


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    DOCS.write_text(text())
