"""What only makes a GPU faster. Without this package everything works, but slower."""

from spml.accel.gpu import GpuAccelerator, Parts

__all__ = ["GpuAccelerator", "Parts"]
