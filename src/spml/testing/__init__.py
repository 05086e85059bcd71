"""The contract that every method keeps, as a function to call in tests."""

from spml.testing.contract import check_method

__all__ = ["check_method"]
