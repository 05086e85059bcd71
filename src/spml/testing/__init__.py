"""For authors of methods: the contract that every method keeps, and a package skeleton."""

from spml.testing.contract import check_method, check_two_processes
from spml.testing.skeleton import write_method_package

__all__ = ["check_method", "check_two_processes", "write_method_package"]
