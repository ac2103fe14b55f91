"""Peak rates and floors, against figures that vendors publish."""

import ctypes

import pytest

from jaxgemm import roofline

H200 = roofline.KNOWN_DEVICES["NVIDIA H200"]


@pytest.mark.parametrize(
    ("device", "unit", "tflops"),
    [
        ("NVIDIA H200", "fp32", 67),
        ("NVIDIA H200", "fp64", 33.5),
        ("NVIDIA H200", "fp64 tensor", 67),
        ("NVIDIA H200", "tf32 tensor", 495),
        ("NVIDIA H200", "16-bit tensor", 989),
        ("NVIDIA H200", "8-bit tensor", 1979),
        ("NVIDIA A100-SXM4-80GB", "fp32", 19.5),
        ("NVIDIA A100-SXM4-80GB", "16-bit tensor", 312),
        ("NVIDIA A100-SXM4-80GB", "8-bit tensor", 624),
        ("NVIDIA A100-SXM4-80GB", "fp64 tensor", 19.5),
    ],
)
def test_peaks_are_the_vendors(device, unit, tflops):
    assert roofline.KNOWN_DEVICES[device].peak(unit) == pytest.approx(tflops * 1e12, rel=0.01)


@pytest.mark.parametrize(
    ("device", "tb"), [("NVIDIA H200", 4.8), ("NVIDIA H100 80GB HBM3", 3.35), ("NVIDIA A100-SXM4-80GB", 2.04)]
)
def test_bandwidths_are_the_vendors(device, tb):
    assert roofline.KNOWN_DEVICES[device].bandwidth == pytest.approx(tb * 1e12, rel=0.01)


def test_unknown_rates_give_no_roofline():
    unknown = roofline.DeviceLimits("future", 999, 100, 2e9, 1e13, 1 << 27)
    assert unknown.peak("fp32") is None
    assert H200.peak("4-bit tensor") is None
    assert roofline.floor(8, 8, 8, limits=unknown, a="float32") is None
    assert roofline.floor(8, 8, 8, limits=H200, a="int32") is None


def test_a_large_product_is_bound_by_compute():
    floor = roofline.floor(4096, 4096, 4096, limits=H200, a="float32", precision="highest")
    assert (floor.bound, floor.unit) == ("compute", "fp32")
    assert floor.seconds == pytest.approx(2 * 4096**3 / 66.9e12, rel=1e-3)


def test_a_row_times_a_matrix_is_bound_by_memory():
    floor = roofline.floor(1, 8192, 8192, limits=H200, a="bfloat16")
    assert floor.bound == "memory"
    assert floor.seconds == pytest.approx(2 * (8192 * 8192 + 2 * 8192) / H200.bandwidth)


def test_batches_add_up_and_types_count_their_own_bytes():
    one = roofline.floor(64, 64, 64, limits=H200, a="int8", d="int32")
    assert one.seconds == pytest.approx((2 * 64 * 64 + 4 * 64 * 64) / H200.bandwidth)
    many = roofline.floor(64, 64, 64, limits=H200, a="int8", d="int32", batch=1024)
    assert many.seconds == pytest.approx(1024 * one.seconds)


def test_parts_are_multiplied_as_often_as_there_are_products_of_them():
    one, six = (roofline.floor(4096, 4096, 4096, limits=H200, a="float32", precision=x) for x in ("bf16", "bf16_x6"))
    narrow = roofline.floor(4096, 4096, 4096, limits=H200, a="bfloat16", d="float32")
    assert six.seconds == 6 * one.seconds == 6 * narrow.seconds
    assert (six.bound, six.unit) == ("compute", "16-bit tensor")


@pytest.mark.parametrize(
    ("dtype", "precision", "arch", "unit"),
    [
        ("float32", "highest", 90, "fp32"),
        ("float32", "default", 90, "tf32 tensor"),
        ("float32", "default", 75, "fp32"),
        ("float64", "default", 90, "fp64 tensor"),
        ("float64", "default", 89, "fp64"),
        ("bfloat16", "highest", 90, "16-bit tensor"),
        ("float32", "bf16_x6", 90, "16-bit tensor"),
        ("float32", "f16_x3", 80, "16-bit tensor"),
        ("uint8", "default", 80, "8-bit tensor"),
        ("float64", "default", 999, "fp64"),
        ("int32", "default", 90, ""),
    ],
)
def test_compute_unit(dtype, precision, arch, unit):
    assert roofline.compute_unit(dtype, precision, arch) == unit


@pytest.fixture(autouse=True)
def _fresh():
    roofline.attached_device.cache_clear()
    roofline.driver_version.cache_clear()
    yield
    roofline.attached_device.cache_clear()
    roofline.driver_version.cache_clear()


def test_no_driver_means_no_device(monkeypatch):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert roofline.attached_device() is None
    assert roofline.driver_version() is None


class FakeDriver:
    """Answers as libcuda and libnvidia-ml do for one H200."""

    def __init__(self, _name):
        self.attributes = {13: 1980000, 16: 132, 36: 3201000, 37: 6016, 38: 60 << 20, 75: 9, 76: 0}

    def cuInit(self, _flags):
        return 0

    def cuDeviceGet(self, device, ordinal):
        device._obj.value = ordinal
        return 0 if ordinal == 0 else 101

    def cuDeviceGetName(self, name, _length, _device):
        name.value = b"NVIDIA H200"
        return 0

    def cuDeviceGetAttribute(self, value, which, _device):
        value._obj.value = self.attributes[which]
        return 0

    def nvmlInit_v2(self):
        return 0

    def nvmlShutdown(self):
        return 0

    def nvmlSystemGetDriverVersion(self, text, _length):
        text.value = b"580.159.04"
        return 0


def test_an_attached_device_is_described_by_its_driver(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", FakeDriver)
    assert roofline.attached_device(0) == H200
    assert roofline.attached_device(1) is None
    assert roofline.driver_version() == "580.159.04"
