"""What is remembered of a problem is remembered by all of it."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

import jaxgemm

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def recall(tmp_path_factory):
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no compiler")
    library = tmp_path_factory.mktemp("recall") / "librecall.so"
    source = Path(__file__).with_name("recall.cc")
    flags = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{ROOT}"]
    done = subprocess.run([compiler, *flags, source, "-o", library], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = ctypes.CDLL(str(library))
    found.unseen.restype = ctypes.c_char_p
    return found


def test_a_problem_that_differs_in_anything_is_another(recall):
    assert recall.unseen().decode() == ""


def test_there_is_room_for_more_options(recall):
    """Kernels with more than any has today are told apart by the last option too, as the other test shows."""
    assert recall.max_options() > max(len(row.options) for row in jaxgemm.kernels())
