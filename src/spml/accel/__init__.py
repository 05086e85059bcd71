"""Optional acceleration, mostly of GPUs. Without this package everything works, but more slowly."""

from spml.accel.gpu import GpuAccelerator, Parts

__all__ = ["GpuAccelerator", "Parts"]
