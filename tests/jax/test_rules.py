"""What auto chooses by its rules, and what each rule is."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import pytest

import jaxgemm
from jaxgemm.choice import grouped, rules, rules_hopper, select
from jaxgemm.choice.resolve import Choice
from jaxgemm.choice.rules import Question, Side
from jaxgemm.choice.rules_hopper import decide
from jaxgemm.choice.xla_times import microseconds
from jaxgemm.epilogue import Epilogue
from jaxgemm.kernels import Device
from jaxgemm.problem import Groups, plan

HOPPER = Device("cuda", "NVIDIA H200", 90, 132)
AMPERE = Device("cuda", "NVIDIA A100-SXM4-80GB", 80, 108)
FULL = jax.lax.DotAlgorithmPreset.F32_F32_F32
HIGHEST = (jax.lax.Precision.HIGHEST,) * 2
E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
RESULTS = Path(__file__).parents[2] / "benchmarks/results"
RULES = [rule for section in (rules.FACTS, *rules_hopper.SECTIONS) for rule in section.rules]


def problem(dtype="bfloat16", m=640, n=488, k=2051, out=None, epilogue=Epilogue()):  # noqa: B008
    view = plan((m, k), (k, n), (((1,), (0,)), ((), ())))
    return view.problem((dtype, dtype, out or dtype), epilogue)


def along_k(m, n, k, types=("bfloat16",) * 3):
    """Of operands whose rows are both along k, so that n is the pitch of the result's rows alone."""
    view = plan((m, k), (n, k), (((1,), (1,)), ((), ())))
    return view.problem(types, Epilogue())


def scores(batch, rows, heads, depth, queries=None):
    """Of attention whose heads lie between its rows."""
    shapes = (batch, queries or rows, heads, depth), (batch, rows, heads, depth)
    view = plan(*shapes, (((3,), (3,)), ((0, 2), (0, 2))))
    return view.problem(("bfloat16",) * 3, Epilogue())


def built(kernel):
    return jaxgemm.kernels()[[row.name for row in jaxgemm.kernels()].index(kernel)].built


cuda = pytest.mark.skipif(not built("sm90"), reason="this build has no CUDA kernels")


@cuda
@pytest.mark.parametrize(
    ("dtype", "precision", "chosen"),
    [("bfloat16", None, "sm90"), ("float16", None, "sm90"), ("float32", HIGHEST, "simt")],
)
@pytest.mark.parametrize(
    "shape",
    [(640, 488, 2051), (2041, 2053, 2051), (512, 528, 544), (64, 4096, 4096), (4096, 96, 4096)],
    ids=["unaligned", "large and unaligned", "small", "short", "few columns"],
)
def test_auto_on_hopper(dtype, precision, chosen, shape):
    choice = select.select(problem(dtype, *shape), HOPPER, precision=precision)
    by_planes = dtype == "float32" and shape == (2041, 2053, 2051)
    assert choice.kernel.name == ("sm90" if by_planes else chosen)
    assert choice.arithmetic == ("bf16_x6" if by_planes else "plain")
    assert choice.ours == choice.considered[0].microseconds


GELU = Epilogue(activation="gelu")


#: Products that are ours: by which kernel, and by which rule.
TAKEN = [
    ("simt", "fp32-small", problem("float32", 512, 512, 256)),
    ("simt", "fp32-small", problem("float32", 64, 8192, 8192)),
    ("sm90", "fp32-planes", problem("float32", 4096, 4096, 4096)),
    ("sm90", "fp32-planes", problem("float32", 2047, 2049, 2051)),
    ("sm90", "split-sums", problem(m=128, n=4096, k=16384)),
    # Where XLA runs several kernels.
    ("sm90", "padded-sums", problem(m=160, n=160, k=24000)),
    ("sm90", "activated", problem(m=4096, n=4096, k=4096, epilogue=GELU)),
    ("sm90", "few-rows-padded", problem(m=4, n=8192, k=8200)),
    ("sm90", "few-rows-split", problem(m=4, n=8192, k=8192)),
    ("sm90", "few-rows-split", problem(m=2, n=8192, k=8192)),
    pytest.param(
        "sm90", "few-rows-split", problem(m=9, n=2304, k=1024), id="long sums for few rows, in a few microseconds"
    ),
    ("sm90", "padded-sums", problem(m=1000, n=800, k=4200)),
    # Where ours are as good.
    ("sm90", "wide-streams", problem(m=60000, n=64, k=64)),
    ("sm90", "wide-streams", problem(m=60000, n=104, k=136)),
    ("sm90", "wide-streams", problem(m=60000, n=32, k=128)),
    ("sm90", "small-batch", replace(problem(m=320, n=320, k=96), batch=(1, 8))),
    pytest.param(
        "sm90", "small-batch", replace(problem(m=248, n=448, k=48), batch=(1, 74)), id="a batch of short sums"
    ),
    # Where XLA copies operands first.
    ("sm90", "copied-batch", scores(4, 1024, 16, 64)),
    ("sm90", "expected-times", problem(m=85, n=1535, k=3553)),
    # Of 8 bits.
    ("sm90", "uint8", problem("uint8", out="int32")),
    ("sm90", "uint8", along_k(256, 256, 256, ("int8", "uint8", "int32"))),
    ("sm90", "int8", problem("int8", m=16, n=8192, k=8192, out="int32")),
    ("sm90", "int8", replace(problem("int8", m=96, n=96, k=16, out="int32"), batch=(1, 4))),
    ("sm90", "fp8", problem(E4M3, m=16, n=8192, k=8192, out="bfloat16")),
    ("sm90", "fp8", along_k(16, 8192, 8192, (E4M3, E4M3, "bfloat16"))),
    ("sm90", "fp8", along_k(1024, 1024, 1000, (E4M3, E4M3, "bfloat16"))),
    ("sm90", "fp8", along_k(256, 256, 256, (E5M2, E5M2, "float32"))),
    # Where XLA's kernels take unaligned weights slowly, or it pads them.
    ("sm90", "expected-times", problem(m=64, n=32001, k=2048)),
    # And where only the result's rows begin anywhere.
    ("sm90", "unaligned-results", along_k(1691, 3267, 4712)),
    ("sm90", "unaligned-results", along_k(104, 40003, 720)),
    # Small products.
    ("direct", "expected-times", problem(m=300, n=101, k=300)),
    pytest.param(
        "direct", "expected-times", replace(problem(m=145, n=181, k=181), batch=(1, 2)), id="an unaligned batch"
    ),
    ("direct", "small", problem(m=96, n=200, k=128)),
    ("direct", "few-rows-smallest", problem(m=12, n=136, k=480)),
    ("direct", "few-rows-split", problem(m=9, n=768, k=1024)),
    pytest.param(
        "direct", "small-batch", replace(problem(m=24, n=64, k=216), batch=(1, 4)), id="one of the smallest batches"
    ),
    ("direct", "expected-times", problem(m=178, n=23, k=540)),
    # An activation takes XLA's small kernels time.
    pytest.param(
        "direct", "small-activated", problem(m=320, n=96, k=16, epilogue=GELU), id="short sums and an activation"
    ),
    pytest.param("direct", "small-activated", problem(m=4, n=72, k=32, epilogue=GELU), id="few rows and an activation"),
    pytest.param(
        "direct", "expected-times", problem(m=59, n=28, k=71, epilogue=GELU), id="unaligned, and an activation"
    ),
]


@cuda
@pytest.mark.parametrize(("chosen", "rule", "given"), TAKEN)
def test_what_auto_takes(chosen, rule, given):
    choice = select.select(given, HOPPER, precision=HIGHEST if given.dtypes[0] == "float32" else None)
    assert (choice.kernel.name, choice.rule) == (chosen, rule)


ROUNDED = "rounded-once"


@cuda
def test_operands_that_are_rounded_once():
    """XLA's product of aligned rows in bfloat16 is as fast; rows are of bfloat16 once operands are rounded."""
    rounded = jax.lax.DotAlgorithmPreset.BF16_BF16_F32
    for shape, ours in (
        ((512, 512, 512), False),
        ((512, 516, 512), True),
        ((512, 512, 516), True),
        ((9, 33, 65), True),
    ):
        choice = select.select(problem("float32", *shape), HOPPER, precision=rounded)
        assert (choice.kernel is not None, choice.rule) == (ours, "named-algorithm" if ours else ROUNDED)
        assert choice.contender == "sm90"
    assert select.select(problem("float32", *shape), AMPERE, precision=rounded).rule == "other-chip"
    invariant = select.select(problem("float32", 64, 64, 64), HOPPER, precision=rounded, batch_invariant=True)
    assert (invariant.kernel.name, invariant.arithmetic) == ("sm90", "bf16")


#: Of float32, by an algorithm's name: the arithmetic.
NAMED = [
    ("named-algorithm", jax.lax.DotAlgorithmPreset.BF16_BF16_F32_X3, "bf16_x3"),
    ("named-algorithm", jax.lax.DotAlgorithmPreset.BF16_BF16_F32_X6, "bf16_x6"),
    ("named-algorithm", jax.lax.DotAlgorithmPreset.BF16_BF16_F32_X9, "bf16_x9"),
    ("named-algorithm", jax.lax.DotAlgorithmPreset.TF32_TF32_F32_X3, "f16_x3"),
]


@cuda
@pytest.mark.parametrize(("rule", "algorithm", "arithmetic"), NAMED)
def test_named_algorithms_are_ours_on_hopper(rule, algorithm, arithmetic):
    for shape in ((64, 64, 64), (2047, 33, 65), (4096, 4096, 4096)):
        choice = select.select(problem("float32", *shape), HOPPER, precision=algorithm)
        # The passes that scale take longer than what they save of small products.
        taken = "bf16_x6" if arithmetic == "f16_x3" and shape != (4096, 4096, 4096) else arithmetic
        assert (choice.kernel.name, choice.rule, choice.arithmetic) == ("sm90", rule, taken)
        assert select.select(problem("float32", *shape), AMPERE, precision=algorithm).rule == "other-chip"
    # Bits that follow from other rows are none of a batch-invariant product's.
    invariant = select.select(problem("float32", 64, 64, 64), HOPPER, precision=algorithm, batch_invariant=True)
    assert invariant.arithmetic == ("bf16_x6" if arithmetic == "f16_x3" else arithmetic)


#: Products that are XLA's, and by which rule.
LEFT = [
    (problem(m=16384, n=512, k=101), HOPPER, None, "unaligned-short-sums"),
    (problem("float32"), HOPPER, None, "tf32"),
    (problem(m=4096, n=4096, k=4096), HOPPER, None, "rows-aligned"),
    (problem("float32", 4096, 4096, 4096), HOPPER, FULL, "rows-aligned"),
    (problem(m=96, n=256, k=64), HOPPER, None, "shortest-sums"),
    (problem(m=4000, n=4000, k=24), HOPPER, None, "shortest-sums"),
    (problem(m=320, n=96, k=16, epilogue=Epilogue(activation="relu")), HOPPER, None, "shortest-sums"),
    (problem(m=300, n=101, k=704), HOPPER, None, "expected-times"),
    (problem(m=300, n=101, k=60), HOPPER, None, "expected-times"),
    (along_k(515, 314, 64), HOPPER, None, "unaligned-results-short-sums"),
    (problem(m=4, n=16384, k=8192), HOPPER, None, "rows-aligned"),
    (problem(m=60000, n=40, k=24), HOPPER, None, "streams"),
    (problem(m=60000, n=32, k=64), HOPPER, None, "streams"),
    (problem(m=60000, n=16, k=112), HOPPER, None, "streams"),
    (problem(m=10000, n=40, k=24, epilogue=GELU), HOPPER, None, "streams"),
    (problem(m=8, n=20000, k=64, epilogue=GELU), HOPPER, None, "rows-aligned"),
    (problem(m=64, n=32768, k=4096), HOPPER, None, "long-side"),
    (problem(m=4096, n=1, k=1024), HOPPER, None, "small-reductions"),
    (replace(problem(m=64, n=64, k=40), batch=(1, 1000)), HOPPER, None, "rows-aligned"),
    (replace(problem(m=64, n=64, k=64), batch=(1, 30)), HOPPER, None, "rows-aligned"),
    (scores(1, 4096, 8, 64), HOPPER, None, "rows-aligned"),  # of one level
    (scores(8, 2048, 32, 128, queries=1), HOPPER, None, "rows-aligned"),
    (problem(m=8, n=16384, k=8192, epilogue=Epilogue(activation="gelu")), HOPPER, None, "rows-aligned"),
    (problem(E4M3, out="float32"), HOPPER, HIGHEST, "other-type"),
    (along_k(256, 512, 1024, (E4M3, E5M2, "bfloat16")), HOPPER, None, "fp8-along-k"),
    (replace(problem("int8", m=256, n=256, k=256, out="int32"), batch=(1, 64)), HOPPER, None, "int8-batches"),
    (problem("int8", out="int32"), AMPERE, None, "other-chip"),
    (problem("float64"), HOPPER, None, "other-type"),
    (replace(problem(), dtypes=("bfloat16", "float16", "float32")), HOPPER, None, "other-type"),
    (replace(problem(), dtypes=("float32", E4M3, "float32")), HOPPER, None, "other-type"),
    (problem(), AMPERE, None, "other-chip"),
    (problem(), Device("cpu", "cpu", 0, 0), None, "other-platform"),
    (problem(), HOPPER, jax.lax.DotAlgorithmPreset.F32_F32_F32, "other-precision"),
]


@cuda
@pytest.mark.parametrize(("given", "device", "precision", "rule"), LEFT)
def test_auto_leaves_the_rest_to_xla(given, device, precision, rule):
    choice = select.select(given, device, precision=precision)
    assert (choice.kernel, choice.rule) == (None, rule)


def fp32(m, n, k, batch=1):
    view = plan((batch, m, k), (batch, k, n), (((2,), (1,)), ((0,), (0,))))
    return view.problem(("float32",) * 3, Epilogue())


@pytest.mark.parametrize(
    ("given", "ours", "theirs", "left"),
    [
        pytest.param(fp32(2047, 2047, 129, 8), 351, 230, True, id="short sums"),
        pytest.param(fp32(197, 197, 64, 96), 40, 29, True, id="attention"),
        pytest.param(fp32(2047, 2049, 2051), 389, 427, False, id="large"),
    ],
)
def test_unaligned_fp32_products_are_compared(given, ours, theirs, left):
    """With the microseconds that an H100 took, or an H200 for the large one."""
    assert microseconds(given) == pytest.approx(theirs, rel=0.12)
    assert side_of(given, ours) is (Side.XLA if left else Side.OURS)
    assert side_of(given, 0.8 * theirs) is Side.OURS


def side_of(given, ours):
    rule, side = decide(Question(given, HOPPER, HIGHEST, ours, microseconds(given)))
    assert rule.name == "expected-times"
    return side


def test_few_tiles_are_not_compared():
    """There XLA may split the sums of a single product."""
    few = fp32(255, 257, 4099)
    assert microseconds(few) is None
    assert side_of(few, 1e6) is Side.OURS
    assert side_of(fp32(255, 257, 4099, 2), 1e6) is Side.XLA


# --- The table ---


def test_names_are_the_rules_own():
    names = [reason.name for reason in (*rules.REASONS, *RULES)]
    assert len(set(names)) == len(names)
    assert all(name == name.lower().replace(" ", "-") for name in names)


def test_every_rule_has_a_product():
    values = [getattr(case, "values", case) for case in (*TAKEN, *NAMED, *LEFT, (ROUNDED,))]
    rows = {value for case in values for value in case if isinstance(value, str)}
    assert {rule.name for rule in RULES} - {"expected-times"} <= rows


@pytest.mark.parametrize("reason", [*rules.REASONS, *RULES], ids=lambda reason: reason.name)
def test_evidence_is_a_file_that_there_is(reason):
    assert not reason.evidence or (RESULTS / reason.evidence).is_file()


def test_what_is_read_off_timings_names_them():
    assert all(rule.evidence for section in rules_hopper.SECTIONS for rule in section.rules)
    assert not any(rule.evidence for rule in rules.FACTS.rules)


def test_the_last_rule_decides_whatever_is_left_by_expected_times():
    last = RULES[-1]
    assert (last.name, last.side) == ("expected-times", Side.FASTER)
    assert [rule for rule in RULES if rule.side is Side.FASTER] == [last]
    question = Question(problem(), HOPPER, None, 10.0, 12.0)
    assert decide(question) == (last, Side.OURS)
    assert decide(replace(question, theirs=8.0)) == (last, Side.XLA)
    assert decide(replace(question, theirs=None)) == (last, Side.OURS)


def test_rules_are_read_in_order_and_one_can_be_passed_over():
    question = Question(problem(m=300, n=200, k=40), HOPPER, None, 2.0)
    assert decide(question)[0].name == "shortest-sums"
    assert decide(question, without="shortest-sums") == (
        next(rule for rule in RULES if rule.name == "small"),
        Side.OURS,
    )


@cuda
@pytest.mark.parametrize("asked", ["auto", "sm90"])
@pytest.mark.parametrize(("given", "modelled"), [(problem(n=480, k=2048), False), (problem(), True)])
def test_a_choice_holds_both_expected_times(asked, given, modelled):
    """XLA's where a model of it exists: of operands with unaligned rows."""
    choice = select.select(given, HOPPER, kernel=asked)
    assert choice.contender == choice.kernel.name == "sm90"
    assert choice.ours == choice.considered[0].microseconds
    assert choice.theirs == microseconds(given)
    assert (choice.theirs is not None) == modelled


@cuda
def test_a_choice_holds_what_ours_expects_where_xla_is_taken():
    left = select.select(problem(m=4096, n=4096, k=4096), HOPPER)
    assert (left.kernel, left.contender, left.considered, left.theirs) == (None, "sm90", (), None)
    assert left.ours == select.select(problem(m=4096, n=4096, k=4096), HOPPER, kernel="sm90").ours
    fact = select.select(problem("float32"), HOPPER)
    assert (fact.contender, fact.ours, fact.theirs) == ("", None, None)


@cuda
def test_rules_that_are_no_conditions_are_named():
    shapes = (problem(), HOPPER)
    assert select.select(*shapes, kernel="sm90").rule == "by-name"
    assert select.select(*shapes, batch_invariant=True).rule == "batch-invariant"
    assert (
        select.select(replace(problem(), dtypes=("bfloat16", "bfloat16", "float64")), HOPPER).rule == "no-kernel-fits"
    )
    gated = replace(problem(m=64, n=512, k=512), gated=True)
    for m, kernel, rule in (
        (4096, "auto", "gated-one-launch"),
        (4096, "sm90", "by-name"),
        (4096, "host", "no-gated-form"),
        (4096, "xla", "by-name"),
    ):
        pair = replace(gated, m=m, n=14336, k=4096, a=replace(gated.a, ld=4096), b=replace(gated.b, ld=14336))
        assert select.select_gated(pair, HOPPER, precision=None, kernel=kernel).rule == rule
    long = replace(gated, k=131072, n=64, a=replace(gated.a, ld=131072), b=replace(gated.b, ld=64))
    composed = select.select_gated(long, HOPPER, precision=None, kernel="auto")
    assert (composed.kernel, composed.rule, composed.contender) == (None, "gated-composed", "sm90")
    assert composed.ours > composed.theirs


def test_a_grouped_kernel_without_a_cost_model(monkeypatch):
    """It is taken wherever it can run: there is no time to hold XLA's against."""
    row = next(row for row in jaxgemm.kernels() if row.name == "sm90")
    monkeypatch.setattr(grouped, "resolve", lambda *_: Choice(row))
    sized = replace(problem(), batch=(1, 8), groups=Groups(False, 8))
    for kernel, rule in (("auto", "grouped-one-launch"), ("sm90", "by-name")):
        choice = grouped.choose(sized, HOPPER, precision=None, kernel=kernel)
        assert (choice.kernel, choice.rule, choice.ours) == (row, rule, None)


def test_every_kernel_with_a_form_is_asked(monkeypatch):
    """One that should take longer than what it replaces, or cannot run, leaves it to the next."""
    names = ("sm80", "simt", "sm90")
    rows = [replace(row, gated=True) for row in jaxgemm.kernels() if row.name in names]
    monkeypatch.setattr(select, "kernels", lambda: rows)
    slow = Choice(rows[0]).left(rules.GATED_COMPOSED, "slow")
    answers = dict(zip((row.name for row in rows), (slow, "cannot", Choice(rows[2])), strict=True))
    choose = partial(select.in_one_launch, "gated", "auto", HOPPER, missing=rules.GATED_MISSING)
    assert choose(weighed=lambda row: answers[row.name]).kernel is rows[2]
    answers[rows[2].name] = "cannot either"
    left = choose(weighed=lambda row: answers[row.name])
    assert (left.kernel, left.rule, left.why) == (None, "gated-composed", "slow; cannot; cannot either")
    with pytest.raises(jaxgemm.UnsupportedError, match="batch_invariant: slow; cannot; cannot either"):
        choose(weighed=lambda row: answers[row.name], batch_invariant=True)
