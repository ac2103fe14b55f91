"""benchmarks/subset.py: what sets of tiles lose, which tile goes next, and what it refuses."""

import math

import pytest

from jaxgemm.measure import configurations
from jaxgemm.measure.case import Case
from jaxgemm.measure.configurations import Product, Table

OPTIONS = ("tile_m", "tile_n", "schedule", "split_k", "unaligned")


@pytest.fixture
def script(benchmark_script):
    return benchmark_script("subset")


def table(rows, source="card/some"):
    """A table of products that are (tile_n: microseconds)."""
    timed = [[((64, n, 2, split, 1), us + split) for n, us in row.items() for split in (1, 2)] for row in rows]
    products = [Product(source, Case(i + 1, 8, 8, "bfloat16"), tuple(x)) for i, x in enumerate(timed)]
    return Table("sm90", OPTIONS, {source: {}}, tuple(products))


#: 64 and 96 are best for all but the last, and 128 is second best for all of them.
ROWS = [{64: 9, 96: 19, 128: 10}, {64: 19, 96: 9, 128: 10}, {64: 9, 96: 9, 128: 10}, {64: 99, 96: 99, 128: 9}]


def test_a_product_has_the_best_time_of_each_tile(script):
    options = ["tile_n", "every_eighth"]  # the table is too old to know option every_eighth
    found = script.read(table(ROWS), [], options, 3, 0)
    assert [x.name for x in found] == [f"{i}x8x8 NN bf16" for i in (1, 2, 3, 4)]
    assert found[0].us == {(64, 1): 10, (96, 1): 20, (128, 1): 11}
    assert script.read(table(ROWS), ["card/some"], options, 3, 0) == found
    with pytest.raises(ValueError, match="no source other; there are card/some"):
        script.read(table(ROWS), ["other"], options, 3, 0)
    assert not script.read(table(ROWS), [], options, 4, 0)
    assert not script.read(table(ROWS), [], options, 3, 10.5)


def test_a_set_loses_against_the_best_of_all(script):
    products = script.read(table([*ROWS, {64: 9, 96: 9}]), [], ["tile_n"], 2, 0)
    sets = script.Subsets(products, 2, {})
    assert sets.tiles == [(64,), (96,), (128,)]
    assert sets.loss({0, 1, 2}) == script.Loss(0, 0, 0)
    only_wide = [math.expm1(x) for x in sets.late({2})]
    assert only_wide == pytest.approx([0.1, 0.1, 0.1, 0, 1])  # the last was not timed: as much as the cap says
    assert sets.loss({2}).mean == pytest.approx((1.1**3 * 2) ** 0.2 - 1)
    assert sets.loss({0, 1}).worst == pytest.approx(1)  # and this is cut off there


def test_the_tile_that_is_missed_least_for_its_cost_goes_next(script):
    products = script.read(table(ROWS), [], ["tile_n"], 2, 0)
    everything = frozenset(range(3))
    even = script.Subsets(products, 2, {})
    lost = {i: even.mean(everything - {i}) for i in everything}
    assert even.without_one(everything, ()) == min(lost, key=lost.get)
    assert lost[2] > lost[0]
    costly = script.Subsets(products, 2, {(128,): 1000.0})
    assert costly.without_one(everything, ()) == 2
    assert costly.without_one(everything, {2}) in (0, 1)
    assert costly.without_one(everything, everything) is None
    assert costly.without_one(frozenset({1}), ()) is None


def test_tiles_change_places_for_less_loss_and_no_more_cost(script):
    products = script.read(table(ROWS), [], ["tile_n"], 2, 0)
    sets = script.Subsets(products, 20, {})
    assert sets.swapped(frozenset({0}), (), ()) == {2}
    assert sets.swapped(frozenset({0}), {0}, ()) == {0}
    assert sets.swapped(frozenset({0}), (), {2}) == {0}
    dear = script.Subsets(products, 20, {(128,): 2.0})
    assert dear.swapped(frozenset({0}), (), ()) == {0}


@pytest.fixture
def asked(tmp_path):
    """Arguments that name a file of these rows."""
    file = tmp_path / "table.json"
    configurations.write(file, table(ROWS))
    return ["--table", str(file)]


def test_the_command_line(script, asked, capsys):
    file = asked
    asked = [*file, "--least", "2", "--cap", "20"]
    assert script.main([*asked, "--stop", "1", "--tile", "tile_m,tile_n"]) == 0
    out = capsys.readouterr().out
    assert "4 products; tiles by tile_m tile_n" in out
    assert "1 tiles, cost 1:" in out
    assert out.index("without") < out.index("What is left") < out.index("Where that loses most")
    assert "64 128" in out[out.index("What is left") :]

    assert script.main([*asked, "--drop", "tile_n=128", "--keep", "tile_m=64,tile_n=96", "--stop", "1"]) == 0
    left = capsys.readouterr().out
    left = left[left.index("What is left") :]
    assert "64 96 2 1 1 1" in left
    assert "4x8x8 NN bf16" in left  # whose best tile was dropped
    assert script.main([*asked, "--cost", "16", "--cost", "8:tile_n=128", "--stop", "99"]) == 0
    assert "3 tiles, cost 40:" in capsys.readouterr().out
    assert script.main([*file, "--least", "4"]) == 1
    assert "nothing was timed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kernel", "none"], "none"),
        (["--tile", "tile_m,size"], "has no option size"),
        (["--keep", "tile_n"], "is not OPTION=VALUE"),
        (["--drop", "tile_n=100"], "no tile that was timed has tile_n=100"),
        (["--drop", "tile_m=64"], "one has to stay"),
        (["--drop", "tile_n=64", "--keep", "tile_n=64"], "cannot stay and go"),
        (["--cost", "0"], "a tile's cost is above 0"),
        (["--cost", "much"], "much"),
        (["--cap", "1"], "--cap is above 1"),
        (["missing"], "no source missing"),
        (["--table", "missing.json"], "missing.json"),
    ],
)
def test_it_refuses(script, asked, capsys, arguments, message):
    with pytest.raises(SystemExit):
        script.main([*asked, "--least", "2", *arguments])
    assert message in capsys.readouterr().err
