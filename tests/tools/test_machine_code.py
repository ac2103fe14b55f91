"""tests/machine_code.py: what it says of two codes, and of a library and itself."""

from dataclasses import replace

import machine_code as script
import pytest


@pytest.fixture
def code():
    return script.Code(("LDC", "HGMMA.64x64x16.F32", "STG"), 168, 0)


def test_the_same_code_differs_in_nothing(code):
    assert script.difference(code, replace(code)) == ""


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"registers": 170}, "registers 168 -> 170"),
        ({"spilled": 8}, "spilled bytes 0 -> 8"),
        ({"opcodes": ("HGMMA.64x64x16.F32", "LDC", "STG")}, "3 -> 3 instructions (another order)"),
        ({"opcodes": ("LDC", "STG")}, "products 1 -> 0; 3 -> 2 instructions (-1 HGMMA.64x64x16.F32)"),
    ],
)
def test_what_differs_is_said(code, changed, said):
    assert script.difference(code, replace(code, **changed)) == said


def test_kernels_are_paired_by_name(code, monkeypatch, capsys):
    def read(library, kernel, renames=()):
        assert kernel == "sm90"
        names = {"old.so": "gemm<1>", "new.so": "gemm<2>"}
        name = names[str(library)].replace(*(renames[0] if renames else ("", "")))
        return {("sm_90a", name): code}

    monkeypatch.setattr(script, "read", read)
    assert script.main(["old.so", "new.so", "--kernel", "sm90"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "gone: gemm<1> for sm_90a",
        "added: gemm<2> for sm_90a",
        "0 of 1 kernels are the same",
    ]
    assert script.main(["old.so", "new.so", "--kernel", "sm90", "--as", "<1>=<2>"]) == 0
    assert capsys.readouterr().out == "1 of 1 kernels are the same\n"
    with pytest.raises(SystemExit):
        script.main(["old.so", "new.so", "--as", "nothing"])


def test_a_library_is_as_it_is(compiled):
    """Of one of its files, as reading all takes minutes."""
    few = [f for f in compiled if f.names[-1].startswith("mma_sync")]
    if not few:
        pytest.skip("this build has no such kernel")
    cubin = few[0].cubin
    assert script.read(cubin, "mma_sync") == script.read(cubin, "mma_sync") != {}
