"""What auto chooses, by model and by measurement, and the script that measures."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

import jaxgemm
from jaxgemm import select, tuning
from jaxgemm.epilogue import Epilogue
from jaxgemm.kernels import Device
from jaxgemm.problem import Problem, plan
from jaxgemm.xla_hopper import better_left, unaligned_fp32_microseconds

HOPPER = Device("cuda", "NVIDIA H200", 90, 132)
AMPERE = Device("cuda", "NVIDIA A100-SXM4-80GB", 80, 108)
HIGHEST = (jax.lax.Precision.HIGHEST,) * 2
KEY = tuning.Key(640, 488, 2051, 1, "NN", "bfloat16", "bfloat16")


def problem(dtype="bfloat16", m=640, n=488, k=2051, out=None, epilogue=Epilogue()):  # noqa: B008
    view = plan((m, k), (k, n), (((1,), (0,)), ((), ())))
    return Problem(view.m, view.n, view.k, view.batch, view.a, view.b, (dtype, dtype, out or dtype), epilogue)


def along_k(m, n, k):
    """Of operands whose rows are both along k, so that n is the pitch of the result's rows alone."""
    view = plan((m, k), (n, k), (((1,), (1,)), ((), ())))
    return Problem(view.m, view.n, view.k, view.batch, view.a, view.b, ("bfloat16",) * 3, Epilogue())


def scores(batch, rows, heads, depth, queries=None):
    """Of attention whose heads lie between its rows."""
    shapes = (batch, queries or rows, heads, depth), (batch, rows, heads, depth)
    view = plan(*shapes, (((3,), (3,)), ((0, 2), (0, 2))))
    return Problem(view.m, view.n, view.k, view.batch, view.a, view.b, ("bfloat16",) * 3, Epilogue())


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
    assert choice.kernel.name == chosen
    assert dtype in choice.why


GELU = Epilogue(activation="gelu")


@cuda
@pytest.mark.parametrize(
    ("chosen", "given"),
    [
        # Where XLA runs several kernels.
        pytest.param("sm90", problem(m=160, n=160, k=24000), id="long sums"),
        pytest.param("sm90", problem(m=4096, n=4096, k=4096, epilogue=GELU), id="an activation"),
        pytest.param("sm90", problem(m=4, n=8192, k=8200), id="padded sums for few rows"),
        pytest.param("sm90", problem(m=4, n=8192, k=8192), id="long sums for few rows"),
        pytest.param("sm90", problem(m=9, n=2304, k=1024), id="long sums for few rows, in a few microseconds"),
        pytest.param("sm90", problem(m=1000, n=800, k=4200), id="padded sums"),
        # Where ours are as good.
        pytest.param("sm90", problem(m=60000, n=64, k=64), id="long"),
        pytest.param("sm90", problem(m=60000, n=104, k=136), id="long, of multiples of 8"),
        pytest.param("sm90", problem(m=60000, n=32, k=128), id="long and narrow"),
        pytest.param("sm90", replace(problem(m=320, n=320, k=96), batch=(1, 8)), id="a small batch"),
        pytest.param("sm90", replace(problem(m=248, n=448, k=48), batch=(1, 74)), id="a batch of short sums"),
        # Where XLA copies operands first.
        pytest.param("sm90", scores(4, 1024, 16, 64), id="heads"),
        pytest.param("sm90", problem(m=85, n=1535, k=3553), id="long unaligned sums"),
        # Where XLA's kernels take unaligned weights slowly, or it pads them.
        pytest.param("sm90", problem(m=64, n=32001, k=2048), id="large unaligned weights"),
        # And where only the result's rows begin anywhere.
        pytest.param("sm90", along_k(1691, 3267, 4712), id="a large result of unaligned rows"),
        pytest.param("sm90", along_k(104, 40003, 720), id="unaligned logits"),
        # Small products.
        pytest.param("direct", problem(m=300, n=101, k=300), id="unaligned"),
        pytest.param("direct", replace(problem(m=145, n=181, k=181), batch=(1, 2)), id="an unaligned batch"),
        pytest.param("direct", problem(m=96, n=200, k=128), id="one of the smallest"),
        pytest.param("direct", problem(m=12, n=136, k=480), id="few rows"),
        pytest.param("direct", problem(m=9, n=768, k=1024), id="few rows of long sums"),
        pytest.param("direct", replace(problem(m=24, n=64, k=216), batch=(1, 4)), id="one of the smallest batches"),
        pytest.param("direct", problem(m=178, n=23, k=540), id="few columns, unaligned"),
        # An activation takes XLA's small kernels time.
        pytest.param("direct", problem(m=320, n=96, k=16, epilogue=GELU), id="short sums and an activation"),
        pytest.param("direct", problem(m=4, n=72, k=32, epilogue=GELU), id="few rows and an activation"),
        pytest.param("direct", problem(m=59, n=28, k=71, epilogue=GELU), id="unaligned, and an activation"),
    ],
)
def test_what_auto_takes(chosen, given):
    assert select.select(given, HOPPER).kernel.name == chosen


@cuda
@pytest.mark.parametrize(
    ("given", "device", "precision", "why"),
    [
        (problem("float32"), HOPPER, None, "tf32"),
        (problem(m=4096, n=4096, k=4096), HOPPER, None, "needs no padding"),
        (problem("float32", 4096, 4096, 4096), HOPPER, HIGHEST, "needs no padding"),
        (problem(m=96, n=256, k=64), HOPPER, None, "the smallest products"),
        (problem(m=4000, n=4000, k=24), HOPPER, None, "the shortest sums"),
        (problem(m=320, n=96, k=16, epilogue=Epilogue(activation="relu")), HOPPER, None, "the shortest sums"),
        (problem(m=300, n=101, k=704), HOPPER, None, "XLA's should take"),
        (problem(m=300, n=101, k=60), HOPPER, None, "XLA's should take"),
        (along_k(515, 314, 64), HOPPER, None, "the shortest sums"),
        (problem(m=2, n=8192, k=8192), HOPPER, None, "needs no padding"),
        (problem(m=4, n=16384, k=8192), HOPPER, None, "needs no padding"),
        (problem(m=60000, n=40, k=24), HOPPER, None, "short sums"),
        (problem(m=60000, n=32, k=64), HOPPER, None, "short sums"),
        (problem(m=60000, n=16, k=112), HOPPER, None, "short sums"),
        (problem(m=10000, n=40, k=24, epilogue=GELU), HOPPER, None, "short sums"),
        (problem(m=8, n=20000, k=64, epilogue=GELU), HOPPER, None, "needs no padding"),
        (problem(m=64, n=32768, k=4096), HOPPER, None, "from a long side"),
        (problem(m=4096, n=1, k=1024), HOPPER, None, "XLA's reduction"),
        (replace(problem(m=64, n=64, k=40), batch=(1, 1000)), HOPPER, None, "a batch of aligned products"),
        (replace(problem(m=64, n=64, k=64), batch=(1, 30)), HOPPER, None, "a batch of aligned products"),
        (scores(1, 4096, 8, 64), HOPPER, None, "a batch of aligned products"),  # of one level
        (scores(8, 2048, 32, 128, queries=1), HOPPER, None, "a batch of aligned products"),
        (problem(m=8, n=16384, k=8192, epilogue=Epilogue(activation="gelu")), HOPPER, None, "needs no padding"),
        (problem("uint8", out="int32"), HOPPER, None, "known to be faster for uint8"),
        (problem("float64"), HOPPER, None, "no kernel of ours is known to be faster for float64"),
        (problem(), AMPERE, None, "for bfloat16 on compute capability 8.0"),
        (problem(), Device("cpu", "cpu", 0, 0), None, "on cpu XLA's own product is the fastest"),
        (problem(), HOPPER, jax.lax.DotAlgorithmPreset.F32_F32_F32, "precision"),
    ],
)
def test_auto_leaves_the_rest_to_xla(given, device, precision, why):
    choice = select.select(given, device, precision=precision)
    assert choice.kernel is None
    assert why in choice.why


@cuda
@pytest.mark.parametrize(("n", "k", "blocks", "reduction"), [(9728, 4096, 2, 1), (2048, 4096, 1, 2)])
def test_how_few_rows_fill_the_machine(n, k, blocks, reduction):
    """With some more tiles than multiprocessors two share one; with far fewer, the blocks of clusters share sums."""
    chosen = select.resolve("sm90", (), problem(m=16, n=n, k=k), HOPPER)
    options = dict(zip(chosen.kernel.options, chosen.config, strict=True))
    assert (options["blocks"], options["reduction"]) == (blocks, reduction)


@cuda
def test_a_measurement_comes_before_the_model(monkeypatch):
    held = {KEY: tuning.Override("sm80", (("tile", 2), ("split_k", 1)), 5.0, 7.5)}
    monkeypatch.setattr(tuning, "overrides", lambda name: held if name == HOPPER.name else {})
    for epilogue in (Epilogue(), Epilogue(activation="relu")):
        choice = select.select(problem(epilogue=epilogue), HOPPER)
        assert (choice.kernel.name, choice.config) == ("sm80", (2, 1))
        assert choice.why == "measured on NVIDIA H200: 5.0 us, otherwise 7.5 us"
    assert select.select(problem(m=641), HOPPER).kernel.name == "sm90"
    held[KEY] = tuning.Override("xla", (), 5.0, 7.5)
    assert select.select(problem(), HOPPER).kernel is None
    assert "measured" in select.select(problem(), HOPPER).why


@cuda
def test_a_measurement_of_one_16_bit_type_holds_for_the_other(monkeypatch):
    held = {KEY: tuning.Override("sm80", (("tile", 2), ("split_k", 1)), 5.0, 7.5)}
    monkeypatch.setattr(tuning, "overrides", lambda _: held)
    choice = select.select(problem("float16"), HOPPER)
    assert (choice.kernel.name, choice.config) == ("sm80", (2, 1))
    assert choice.why == "measured on NVIDIA H200 for bfloat16: 5.0 us, otherwise 7.5 us"
    for other in (problem("float16", out="float32"), problem("float32")):
        assert "measured" not in select.select(other, HOPPER).why
    held[KEY.alike()] = tuning.Override("xla", (), 5.0, 7.5)
    assert select.select(problem("float16"), HOPPER).kernel is None
    assert select.select(problem(), HOPPER).kernel.name == "sm80"


@cuda
def test_what_auto_leaves_to_xla_is_left_whole(monkeypatch):
    """Its fp32 form, with the conversion after it, is another product, which is not in question then."""
    held = {KEY: tuning.Override("xla", (), 5.0, 7.5)}
    monkeypatch.setattr(tuning, "overrides", lambda _: held)
    operands = [jax.ShapeDtypeStruct(shape, "bfloat16") for shape in ((KEY.m, KEY.k), (KEY.k, KEY.n))]
    (product,) = jaxgemm.explain(jaxgemm.gemm, *operands, platform="cuda").products
    assert product.kernel == "xla"
    assert product.decision.problem.dtypes[2] == "bfloat16"


@cuda
def test_a_measured_configuration_that_does_not_fit_is_passed_over(monkeypatch):
    held = {KEY: tuning.Override("wmma_tf32", (), 5.0, 7.5)}
    monkeypatch.setattr(tuning, "overrides", lambda _: held)
    assert select.select(problem(), HOPPER).kernel.name == "sm90"


H100 = Device("cuda", "NVIDIA H100 80GB HBM3", 90, 132)


def test_a_device_of_the_same_chip_lends_what_memory_does_not_decide(monkeypatch):
    key = tuning.Key(1000, 1000, 1000, 1, "NN", "bfloat16", "bfloat16")
    streamed = tuning.Key(128, 8192, 28672, 1, "NN", "float16", "float16")
    entry, own = tuning.Override("xla", (), 7.0, 8.2), tuning.Override("xla", (), 6.0, 9.0)
    held = {"NVIDIA H200": {key: entry, streamed: tuning.Override("xla", (), 115.0, 120.0)}}
    monkeypatch.setattr(tuning, "overrides", lambda name: held.get(name, {}))
    assert tuning.find("NVIDIA H100 80GB HBM3", key) == tuning.Found(entry, key, "NVIDIA H200")
    assert tuning.find("NVIDIA H100 80GB HBM3", key.alike()) == tuning.Found(entry, key, "NVIDIA H200")
    assert tuning.find("NVIDIA H100 80GB HBM3", streamed) is None
    assert tuning.find("NVIDIA H100 PCIe", key) is None
    assert tuning.find("NVIDIA H200", streamed) is not None
    choice = select.select(problem(m=1000, n=1000, k=1000), H100)
    assert choice.kernel is None
    assert choice.why == "measured on NVIDIA H200: 7.0 us, otherwise 8.2 us"
    held["NVIDIA H100 80GB HBM3"] = {key: own}
    assert tuning.find("NVIDIA H100 80GB HBM3", key) == tuning.Found(own, key, "NVIDIA H100 80GB HBM3")


def test_a_thousand_cubed_is_left_to_xla_on_both():
    for device in (HOPPER, H100):
        assert select.select(problem(m=1000, n=1000, k=1000), device).kernel is None


def fp32(m, n, k, batch=1):
    view = plan((batch, m, k), (batch, k, n), (((2,), (1,)), ((0,), (0,))))
    return Problem(view.m, view.n, view.k, view.batch, view.a, view.b, ("float32",) * 3, Epilogue())


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
    assert unaligned_fp32_microseconds(given) == pytest.approx(theirs, rel=0.12)
    assert bool(better_left(given, ours)) == left
    assert not better_left(given, 0.8 * theirs)


def test_few_tiles_are_not_compared():
    """There XLA may split the sums of a single product."""
    assert not better_left(fp32(255, 257, 4099), 1e6)
    assert better_left(fp32(255, 257, 4099, 2), 1e6)


def test_files_say_what_was_written():
    other = tuning.Key(1, 2, 3, 7, "TN", "float32", "float32")
    entries = {
        KEY: tuning.Override("sm90", (("tile_m", 128), ("split_k", 2)), 5.25, 7.5),
        other: tuning.Override("xla", (), 1.0, 2.0),
    }
    text = tuning.to_json("NVIDIA H200", entries, date="2026-01-01")
    assert tuning.from_json(text) == entries
    assert json.loads(text)["date"] == "2026-01-01"
    assert [row["m"] for row in json.loads(text)["products"]] == [1, 640]
    assert tuning.from_json(tuning.to_json("NVIDIA H200", {})) == {}
    assert tuning.overrides("a device without a file") == {}


@pytest.mark.parametrize("file", sorted(Path(tuning.__file__).parent.glob("*.json")), ids=lambda f: f.name)
def test_entries_are_sound(file):
    content = json.loads(file.read_text())
    assert tuning.slug(content["device"]) == file.stem
    for key, entry in tuning.from_json(file.read_text()).items():
        assert entry.us < entry.instead_us, key
        if entry.kernel != "xla":
            row = select.find_kernel(entry.kernel)
            assert [name for name, _ in entry.options] == list(row.options), key


@pytest.fixture
def script(benchmark_script):
    return benchmark_script("tune")


def run(script, monkeypatch, folder, *arguments):
    monkeypatch.setattr(sys, "argv", ["tune.py", *arguments, "--repeats", "3", "--output", str(folder)])
    return script.main()


@pytest.mark.parametrize(("margin", "entries"), [("1e9", 0), ("-0.999", 1)])
def test_tuning_keeps_what_is_faster_by_the_margin(script, monkeypatch, tmp_path, capsys, margin, entries):
    monkeypatch.setattr(script, "CONTENDERS", {"float32": (0, 0, ("host",))})
    if jax.devices()[0].platform != "cpu":
        pytest.skip("the script measures on JAX's default device")
    assert run(script, monkeypatch, tmp_path, "--shapes", "16x24x8", "--dtype", "f32", "--margin", margin) == 0
    (file,) = tmp_path.glob("*.json")
    held = tuning.from_json(file.read_text())
    assert len(held) == entries
    assert set(held) <= {tuning.Key(16, 24, 8, 1, "NN", "float32", "float32")}
    assert "16x24x8 NN f32" in capsys.readouterr().out


@pytest.mark.parametrize(("borrowed", "instead"), [("host", 5.0), ("xla", None)])
def test_tuning_compares_with_what_the_other_16_bit_type_lends(script, monkeypatch, borrowed, instead):
    """XLA is the faster here: worth an entry only where the other type's says something else."""
    monkeypatch.setattr(script, "CONTENDERS", {"float16": (0, 0, ("host",))})
    if jax.devices()[0].platform != "cpu":
        pytest.skip("the script measures on JAX's default device")
    path = SimpleNamespace(timing=SimpleNamespace(us=3.0))
    rows = [SimpleNamespace(kernel="host", us=5.0, xla={"default": path})]
    key = tuning.Key(16, 24, 8, 1, "NN", "float16", "float16")
    entries = {key.alike(): tuning.Override(borrowed, (), 1.0, 2.0)}
    script._tune(script.Case(16, 24, 8, "float16"), SimpleNamespace(measure=lambda *_: rows), entries, 1, 0.5)
    assert entries.get(key) == (instead and tuning.Override("xla", (), 3.0, instead))


def test_tuning_says_what_no_kernel_covers(script, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(script, "CONTENDERS", {})
    assert run(script, monkeypatch, tmp_path, "--shapes", "16x24x8", "--dtype", "f32") == 0
    assert "no kernel" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [(), ("--shapes", "16x24"), ("--suite", "nothing")])
def test_tuning_refuses_nonsense(script, monkeypatch, tmp_path, capsys, arguments):
    with pytest.raises(SystemExit, match="2"):
        run(script, monkeypatch, tmp_path, *arguments)
    assert "usage" in capsys.readouterr().err
