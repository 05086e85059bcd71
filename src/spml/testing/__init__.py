"""The contract that every method keeps, for the tests of a method."""

from spml.testing.contract import check_method, check_two_processes

__all__ = ["check_method", "check_two_processes"]
