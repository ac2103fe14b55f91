"""Fits the constants of sm90's cost model to timings: python benchmarks/fit.py --steps 20000

Timings are those of benchmarks/results/sm90_configurations.json, which regret.py writes, on devices that
jaxgemm.roofline knows: of the sources that are named, by default nvidia-h200/fit. cost.cc names the sources that its
constants are of. The model, which is
ffi/cuda/sm90/cost.cc itself with its constants as variables, is compiled, and a random walk changes a few constants
at a time for what its choices lose against the best configuration of each product, and for how far its times are from
those measured. The launch is set last, so that small products take on average what is expected of them, as `auto`
holds these times to other kernels' and XLA's. What comes out is cost_constants.h beside cost.cc (--write), the same
for the same timings, steps and seed. Judge it by products of another seed: python benchmarks/fit.py
nvidia-h200/regret --steps 0
"""

from __future__ import annotations

import argparse
import ctypes
import math
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxgemm import precision
from jaxgemm.dtypes import ELEMENT_TYPES
from jaxgemm.epilogue import ACTIVATIONS
from jaxgemm.measure import configurations, report
from jaxgemm.measure.configurations import Product
from jaxgemm.roofline import KNOWN_DEVICES, DeviceLimits

sys.path.insert(0, str(Path(__file__).resolve().parent / "support"))
import cost_constants

_ROOT = Path(__file__).resolve().parent.parent
_MODEL = (
    "ffi/cuda/sm90/cost.cc",
    "ffi/cuda/sm90/store_path.cc",
    "ffi/cuda/sm90/planes/slabs.cc",
    "ffi/cuda/sm90/planes/tail.cc",
)
_TABLE = _ROOT / "benchmarks/results/sm90_configurations.json"
_SOURCE = "nvidia-h200/fit"
_FITTED = KNOWN_DEVICES["NVIDIA H200"]  # whose rates the constants are

#: Weight of the squared logarithm of a constant's change, so that one of which timings say nothing stays as it is.
_PULL = 3e-4
#: Products of fewer microseconds are mostly launch.
_SMALL = 8.0

#: What is compiled behind the model. A timing is a configuration's options as the row names them, and microseconds.
CODE = r"""
#include "bytes/copies.h"
#include "options.h"
#include "planes/slabs.h"
#include "planes/tail.h"

namespace {
using namespace jaxgemm;
using namespace jaxgemm::cuda;
using namespace jaxgemm::cuda::sm90;

struct Timing {
  Config config;
  double log_us;
};
struct Product {
  GemmProblem problem;
  Machine machine;
  std::vector<Timing> timings;
  double best = INFINITY;
};
std::vector<Product> products;

double expected(const Product& of, const Config& c) {
  if (c.tail > 1) return cost_of_parts(of.problem, c, of.machine).total;
  return cost(of.problem, Shape(of.problem, c.swap), kTiles[c.tile], c, of.machine).total;
}
}  // namespace

extern "C" {
double* constants() { return fitted; }

void add_product(int64_t m, int64_t n, int64_t k, int64_t batch, int a_transposed, int b_transposed, int bias,
                 int activation, int arithmetic, int dtype, int out, int multiprocessors, double bandwidth) {
  Product& product = products.emplace_back();
  product.machine = {multiprocessors, bandwidth};
  GemmProblem& p = product.problem;
  p.m = m, p.n = n, p.k = k, p.batch[1] = batch;
  p.a = {static_cast<DType>(dtype), a_transposed != 0, a_transposed ? m : k, {0, batch > 1 ? m * k : 0}};
  p.b = {static_cast<DType>(dtype), b_transposed != 0, b_transposed ? k : n, {0, batch > 1 ? k * n : 0}};
  p.d = static_cast<DType>(out);
  p.has_bias = bias != 0;
  p.activation = static_cast<Activation>(activation);
  p.arithmetic = static_cast<Arithmetic>(arithmetic);
  if (!of_planes(p)) return;
  p = slab_problem(p, slabs_of(p), 0, plane_arithmetic(p));
}

int option_count() { return kOptionCount; }

// 0 where there is no such tile now. Timings may be older than the last option, which is 0 then.
int add_timing(const int64_t* options, double us) {
  Product& product = products.back();
  GemmProblem p = product.problem;
  p.config = {options, kOptionCount};
  for (int tile = 0; tile < kTileCount; ++tile) {
    const TileConfig& t = kTiles[tile];
    if (!t.is_dense() || t.gated != Axis::kNone || t.planes != of_planes(p)) continue;
    if (t.turned != (of_bytes(p) && Shape(p, fixed(p, "swap") == 2).x_mn_major)) continue;
    if (!options_allow(p, {.tile = tile}, {Scope::kTile})) continue;
    const auto value = [&](OptionPlace option) { return static_cast<int>(fixed(p, option)); };
    product.timings.push_back({{tile, value("cluster_m"), value("cluster_n"), value("split_k"), value("swap") == 2,
                                value("walk_height"), Grid(value("grid")), Reduction(value("reduction")), 1,
                                std::max(1, value("tail"))},
                               std::log(us)});
    product.best = std::min(product.best, std::log(us));
    return 1;
  }
  return 0;
}

// The last product, of whose timings there are none.
void remove_product() { products.pop_back(); }

double expect(int64_t product, int64_t timing) {
  return expected(products[product], products[product].timings[timing].config);
}

// The mean logarithm of what choices lose, and into `smooth` the same with every configuration weighed by how near it
// is to the least expected time, and `weight` times the mean square of the error of expected times, up to 30 %.
double loss(double weight, double* smooth) {
  double lost = 0;
  *smooth = 0;
  for (const Product& product : products) {
    std::vector<double> e;
    for (const Timing& t : product.timings) e.push_back(std::log(expected(product, t.config)));
    const size_t choice = std::min_element(e.begin(), e.end()) - e.begin();  // the first of equals
    const double least = e[choice];
    double sum = 0, near = 0, error = 0;
    for (size_t i = 0; i < e.size(); ++i) {
      const double x = std::exp(-60 * (e[i] - least)), late = product.timings[i].log_us - product.best;
      const double off = e[i] - product.timings[i].log_us;
      sum += x, near += x * late, error += std::min(off * off, 0.09);
    }
    lost += product.timings[choice].log_us - product.best;
    *smooth += near / sum + weight * error / double(e.size());
  }
  *smooth /= double(products.size());
  return lost / double(products.size());
}
}
"""


def compiled(folder: Path) -> tuple[ctypes.CDLL, list[str]]:
    """The model as a library, and the names of its constants; RuntimeError where it does not compile."""
    constants = cost_constants.values(cost_constants.FILE.read_text())
    names, _ = cost_constants.flat(constants)
    source, library = folder / "model.cc", folder / "libmodel.so"
    source.write_text("".join((_ROOT / file).read_text() for file in _MODEL) + CODE)
    # The model includes the file of this name that lies beside it.
    (folder / cost_constants.FILE.name).write_text(cost_constants.variables(constants))
    folders = dict.fromkeys(f"-I{(_ROOT / file).parent}" for file in _MODEL)
    flags = ["-O3", "-march=native", "-std=c++20", "-shared", "-fPIC", *folders]
    compiler = shutil.which("g++")
    if compiler is None:
        raise RuntimeError("g++ is not on the PATH: the model is compiled here")
    done = subprocess.run([compiler, *flags, "-o", library, source], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"the model did not compile:\n{done.stderr[-2000:]}")
    model = ctypes.CDLL(str(library))
    model.constants.restype = ctypes.POINTER(ctypes.c_double)
    model.add_product.argtypes = [ctypes.c_int64] * 4 + [ctypes.c_int] * 8 + [ctypes.c_double]
    model.add_timing.argtypes = [ctypes.POINTER(ctypes.c_int64), ctypes.c_double]
    model.expect.argtypes, model.expect.restype = [ctypes.c_int64] * 2, ctypes.c_double
    model.loss.argtypes, model.loss.restype = [ctypes.c_double, ctypes.POINTER(ctypes.c_double)], ctypes.c_double
    return model, names


_ACTIVATIONS = {name: number for number, name in enumerate((None, *ACTIVATIONS))}  # as ffi/activation.h counts them
_TYPES = tuple(ELEMENT_TYPES)  # in the order of their numbers
_ARITHMETICS = {name: number for number, name in enumerate(precision.ARITHMETICS)}  # as ffi/dtype.h does


def load(model: ctypes.CDLL, products: Sequence[Product], device: DeviceLimits = _FITTED) -> list[list[float]]:
    """Give the timings of products, and whose they are, to the model; returns their microseconds.

    Products are left out where all that was timed are tiles that there are no more.
    """
    found: list[list[float]] = []
    row = ctypes.c_int64 * model.option_count()
    for case, timed in ((product.case, product.timed) for product in products):
        transposed = [int(letter == "T") for letter in case.layout]
        epilogue = int(case.bias), _ACTIVATIONS[case.activation]
        named = (
            precision.emulated(precision.canonical(case.jax_precision), np.dtype(case.dtype))
            if case.dtype == "float32"
            else ""
        )
        extents = case.m, case.n, case.k, case.batch or 1
        arithmetic = _ARITHMETICS[named or "plain"]
        types = (_TYPES.index(case.dtype), _TYPES.index(case.out_dtype))
        model.add_product(
            *extents, *transposed, *epilogue, arithmetic, *types, device.multiprocessors, device.bandwidth
        )
        times = [us for config, us in timed if us and model.add_timing(row(*config), us)]
        if times:
            found.append(times)
        else:
            model.remove_product()
    return found


def search(
    model: ctypes.CDLL, names: Sequence[str], steps: int, weight: float, seed: int, only: tuple[str, ...] = ("",)
) -> None:
    """Leave the model with the best constants of a walk of so many steps. Names that begin with `only` change."""
    draw, x = random.Random(seed), model.constants()
    free = [i for i, name in enumerate(names) if not name.endswith("[0]") and name.startswith(only)]
    # The first of an array is 1, and the others are relative to it.
    start, reach = [x[i] for i in range(len(names))], [0.1] * len(names)
    smooth = ctypes.c_double()

    def total() -> float:
        model.loss(weight, ctypes.byref(smooth))
        return smooth.value + _PULL * sum(math.log(x[i] / start[i]) ** 2 for i in free)

    best = total()
    each = -(-steps // 100)
    with report.progress(100, "fit") as announce:
        for step in range(steps):
            if step % each == 0:
                announce(f"objective {best:.5f}")
            changed = draw.sample(free, min(draw.randint(1, 3), len(free)))
            before = [x[i] for i in changed]
            for i in changed:
                x[i] *= math.exp(reach[i] * draw.gauss(0, 1))
            now = total()
            better = now < best
            best = min(best, now)
            for i, value in zip(changed, before, strict=True):
                reach[i] = min(0.5, 1.5 * reach[i]) if better else max(0.005, 0.95 * reach[i])
                x[i] = x[i] if better else value


def launch_offset(model: ctypes.CDLL, found: Sequence[Sequence[float]]) -> float:
    """Microseconds that the choices of the smallest products took longer than expected, on average."""
    late = []
    for product, times in enumerate(found):
        least, us = min((model.expect(product, i), us) for i, us in enumerate(times))
        if us < _SMALL:
            late.append(us - least)
    return sum(late) / len(late) if late else 0.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", default=[_SOURCE], help=f"of timings (default {_SOURCE})")
    parser.add_argument("--table", type=Path, default=_TABLE, help="of configurations (default benchmarks/results')")
    parser.add_argument("--steps", type=int, default=20000, help="of the walk (default 20000); 0 only judges")
    parser.add_argument("--weight", type=float, default=1.0, help="of the error of expected times (default 1)")
    parser.add_argument("--seed", type=int, default=1, help="of the walk (default 1)")
    parser.add_argument("--write", action="store_true", help="cost_constants.h, rather than print what has changed")
    parser.add_argument("--only", default="", help="beginnings of constants' names, by commas: the others stay")
    options = parser.parse_args(arguments)
    try:
        table = configurations.load(options.table, "sm90")
        timed = [(table.of(source), str(table.sources[source]["device"])) for source in options.sources]
    except (OSError, ValueError) as error:
        parser.error(f"no timings: {error}")
    if unknown := sorted({device for _, device in timed} - set(KNOWN_DEVICES)):
        parser.error(f"no rates of {', '.join(unknown)}: jaxgemm.roofline knows {', '.join(KNOWN_DEVICES)}")
    with tempfile.TemporaryDirectory() as folder:
        try:
            model, names = compiled(Path(folder))
            found = [us for products, device in timed for us in load(model, products, KNOWN_DEVICES[device])]
        except (RuntimeError, ValueError) as error:
            parser.error(str(error))
        if not found:
            parser.error("no product has a timing of a tile that there is")
        if left_out := sum(len(products) for products, _ in timed) - len(found):
            print(f"{left_out} products left out: none of their timings is of a tile that there is")
        only = tuple(options.only.split(","))
        if not any(name.startswith(only) for name in names):
            parser.error(f"no constant's name begins with {' or '.join(only)}")
        smooth = ctypes.c_double()

        def judged() -> str:
            choice = math.exp(model.loss(options.weight, ctypes.byref(smooth)))
            offset = launch_offset(model, found)
            return f"choices take {choice:.4f} times the best; small ones {offset:+.2f} us more than expected"

        print(f"{len(found)} products, {sum(map(len, found))} timings: {judged()}")
        if options.steps > 0:
            search(model, names, options.steps, options.weight, options.seed, only)
            print(f"fitted: {judged()}")
            if not options.only:
                model.constants()[names.index("kLaunch")] += launch_offset(model, found)
            fitted = [model.constants()[i] for i in range(len(names))]
            header = cost_constants.header(cost_constants.grouped(names, fitted))
            before = cost_constants.FILE.read_text()
            print("\n".join(line for line in header.splitlines() if line not in before.splitlines()))
            if options.write:
                cost_constants.FILE.write_text(header)
    return 0


if __name__ == "__main__":
    sys.exit(main())
