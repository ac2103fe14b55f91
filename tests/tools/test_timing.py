"""The clock: kernels of a call are summed, programs take turns, and no input comes round too soon."""

import itertools

import jax
import jax.numpy as jnp
import pytest

from jaxgemm.measure import cupti, timing

#: Nanoseconds since 1970: numbers of which a float does not keep the last digits.
NOW = 1_764_000_000_000_000_001


def in_a_row(*kernels):
    """Records of kernels, by name and microseconds, each of which begins where the one before it ends."""
    times = [(name, round(1e3 * us)) for name, us in kernels]
    ends = itertools.accumulate((ns for _, ns in times), initial=NOW)
    return [(name, begin, begin + ns) for (name, ns), begin in zip(times, ends, strict=False)]


def test_per_call_sums_the_kernels_of_each_call():
    records = in_a_row(("pad", 1.0), ("gemm", 10.0), ("pad", 2.0), ("gemm", 20.0), ("pad", 3.0), ("gemm", 30.0))
    us, kernels = timing.per_call(records, 3)
    assert us == pytest.approx([11.0, 22.0, 33.0])
    assert kernels == ("pad", "gemm")


def test_per_call_with_one_kernel_keeps_the_spread():
    us, kernels = timing.per_call(in_a_row(("gemm", 1.0), ("gemm", 3.0)), 2)
    assert us == pytest.approx([1.0, 3.0])
    assert kernels == ("gemm",)


def test_per_call_counts_once_what_runs_at_a_time():
    overlapping = [("gemm", NOW, NOW + 10_000), ("reduce", NOW + 8_000, NOW + 12_000)]
    assert timing.per_call(overlapping, 1)[0] == pytest.approx([12.0])
    within = [("gemm", NOW, NOW + 9_000), ("inner", NOW + 1_000, NOW + 2_000)]
    assert timing.per_call(within, 1)[0] == pytest.approx([9.0])


def test_per_call_leaves_out_when_nothing_runs():
    assert timing.per_call([("pad", NOW, NOW + 1_000), ("gemm", NOW + 5_000, NOW + 8_000)], 1)[0] == pytest.approx(
        [4.0]
    )


def test_per_call_tells_nanoseconds():
    assert timing.per_call(in_a_row(("gemm", 2.431)), 1)[0] == pytest.approx([2.431], abs=1e-6)


@pytest.mark.parametrize(
    "kernels",
    [
        [("pad", 1.0), ("gemm", 10.0), ("pad", 2.0)],  # one is missing
        [("pad", 1.0), ("gemm", 10.0), ("gemm", 1.0), ("pad", 1.0)],  # in another order
    ],
)
def test_per_call_gives_the_mean_where_calls_cannot_be_told_apart(kernels):
    us, names = timing.per_call(in_a_row(*kernels), 2)
    assert us == pytest.approx([sum(us for _, us in kernels) / 2] * 2)
    assert names == ("pad", "gemm")


def test_per_call_without_records():
    assert timing.per_call([], 4) == ([], ())
    assert timing.per_call(in_a_row(("gemm", 1.0)), 0) == ([], ())


class FakeDevice:
    """A recorder and programs whose kernels take the microseconds that they are told to, in a row."""

    def __init__(self):
        self.recording = None
        self.calls = []
        self.detached = 0

    def program(self, name, kernels):
        times = itertools.cycle(kernels)

        def run(x):
            self.calls.append((name, int(x)))
            if self.recording is not None:
                self.recording += next(times)
            return x

        return run

    def start(self):
        assert self.recording is None
        self.recording = []

    def stop(self):
        kernels, self.recording = self.recording, None
        return in_a_row(*kernels)

    def detach(self):
        self.detached += 1


def measure(device, programs, copies=7, **options):
    inputs = [(jnp.asarray(i),) for i in range(copies)]
    return timing.measure(programs, inputs, recorder=device, **options)


def test_measure_takes_medians_of_device_time():
    device = FakeDevice()
    programs = {
        "ours": device.program("ours", [[("gemm", 4.0)], [("gemm", 6.0)], [("gemm", 5.0)]]),
        "theirs": device.program("theirs", [[("pad", 1.0), ("gemm", 7.0)]]),
    }
    times = measure(device, programs, repeats=15)
    assert times["ours"].device_us == pytest.approx(5.0)
    assert times["theirs"].device_us == pytest.approx(8.0)
    assert (times["ours"].launches, times["theirs"].launches) == (1, 2)
    assert times["theirs"].kernels == ("pad", "gemm")
    assert times["ours"].us == times["ours"].device_us
    assert times["ours"].wall_us > 0
    assert times["ours"].calls == 15
    assert device.detached == 1
    assert device.recording is None


def test_measure_walks_one_ring_of_inputs():
    device = FakeDevice()
    programs = {name: device.program(name, [[("gemm", 1.0)]]) for name in ("a", "b", "c")}
    measure(device, programs, copies=5, repeats=6)
    drawn = [x for _, x in device.calls]
    assert drawn == [i % 5 for i in range(len(drawn))]


def test_measure_alternates_programs():
    device = FakeDevice()
    programs = {name: device.program(name, [[("gemm", 1.0)]]) for name in ("a", "b")}
    measure(device, programs, repeats=10, rounds=5)
    device_part = [name for name, _ in device.calls[-20:]]
    runs = [(name, len(list(group))) for name, group in itertools.groupby(device_part)]
    assert runs == [
        ("a", 2),
        ("b", 4),
        ("a", 4),
        ("b", 4),
        ("a", 4),
        ("b", 2),
    ]  # two calls a turn, order shifting


def test_measure_without_a_recorder_gives_wall_times():
    times = timing.measure({"sum": jax.jit(jnp.sum)}, [(jnp.ones(8),)], repeats=4)
    assert times["sum"].device_us is None
    assert times["sum"].us == times["sum"].wall_us > 0
    assert times["sum"].calls == 4


@pytest.mark.parametrize("queued", [False, True])
def test_wall_times_are_of_one_call(monkeypatch, queued):
    now = 0.0

    def takes_a_while(x):
        nonlocal now
        now += 0.002
        return x

    monkeypatch.setattr(timing.time, "perf_counter", lambda: now)
    times = timing.measure({"slow": takes_a_while}, [(jnp.ones(1),)], repeats=10, queued=queued)
    assert times["slow"].wall_us == pytest.approx(2_000)


def test_measure_gives_slow_programs_fewer_calls_and_at_least_three():
    device = FakeDevice()
    programs = {"a": device.program("a", [[("gemm", 1.0)]])}
    assert measure(device, programs, repeats=50, budget_s=0.0)["a"].calls == 3


def test_a_program_that_launches_nothing_has_no_device_time():
    device = FakeDevice()
    assert measure(device, {"a": device.program("a", [[]])})["a"].device_us is None


def test_recording_ends_when_a_program_fails():
    device = FakeDevice()
    count = itertools.count()

    def fails_later(x):
        if next(count) > 8 and device.recording is not None:
            raise RuntimeError("lost")
        return x

    with pytest.raises(RuntimeError, match="lost"):
        measure(device, {"a": fails_later}, repeats=5)
    assert device.recording is None


def test_there_is_no_recorder_on_a_cpu():
    assert timing.device_recorder("cpu") == (None, "wall time")


def test_a_recorder_that_cannot_be_had_leaves_wall_time(monkeypatch):
    class Broken:
        def __init__(self):
            raise RuntimeError("someone else is profiling")

    monkeypatch.setattr(timing.cupti, "Recorder", Broken)
    recorder, how = timing.device_recorder("gpu")
    assert recorder is None
    assert how == "wall time, as CUPTI is not usable here (someone else is profiling)"


@pytest.mark.gpu
def test_device_time_on_a_gpu():
    recorder, how = timing.device_recorder("gpu")
    assert how == "device time through CUPTI, in which kernels run"
    x = jax.random.normal(jax.random.key(0), (2048, 2048))
    small, large = jax.jit(lambda x: x[:64, :64] @ x[:64, :64]), jax.jit(lambda x: x @ x)
    times = timing.measure({"small": small, "large": large}, [(x,)], repeats=10, recorder=recorder)
    assert 0 < times["small"].device_us < times["large"].device_us < times["large"].wall_us
    assert times["large"].launches >= 1


@pytest.mark.gpu
def test_the_recorder_can_be_detached_and_attached_again():
    recorder, program, x = cupti.Recorder(), jax.jit(lambda x: x @ x), jnp.ones((256, 256))
    jax.block_until_ready(program(x))
    for _ in range(3):
        recorder.start()
        jax.block_until_ready([program(x) for _ in range(4)])
        records = recorder.stop()
        recorder.detach()
        assert len(records) >= 4
        assert len(records) % 4 == 0
        assert all(name and 0 < begin < end for name, begin, end in records)
        assert [begin for _, begin, _ in records] == sorted(begin for _, begin, _ in records)
