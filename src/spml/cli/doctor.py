"""`spml doctor`: versions, devices and what is missing."""

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

from spml.cli.console import print_table
from spml.errors import install_command

EXAMPLE = "spml doctor"
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[^]]*])?([^;]*)(?:;.*extra == ['\"]([\w-]+)['\"])?")
_FOR_DEVELOPERS = ("dev", "docs")


def command() -> None:
    """Print versions, devices and optional extras, and what is missing. Paste the output into a bug report."""
    print_table(("", ""), list(_system()), title="System")
    extras = list(_extras())
    if extras:
        print_table(("extra", "installed", "missing"), extras, title="Extras")
        missing = [extra for extra, _, packages in extras if packages]
        if missing:
            print(f"Install an extra with, for example: {install_command(missing[0])}")


def _system() -> Iterator[tuple[str, str]]:
    import os
    import platform

    import numpy
    import torch

    import spml

    yield "spml", f"{spml.__version__}, {os.path.dirname(spml.__file__)}"
    yield "Python", f"{platform.python_version()}, {platform.platform()}"
    yield "torch", f"{torch.__version__}, {torch.get_num_threads()} threads, {os.cpu_count()} processors"
    yield "numpy", numpy.__version__
    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    yield "GPU", ", ".join(gpus) or f"none: training uses the CPU (torch was built for CUDA {torch.version.cuda})"


def _extras() -> Iterator[tuple[str, str, str]]:
    """Each extra with its installed packages, and with those that are missing. Most extras include `train`."""
    declared = _packages_by_extra()
    trains = declared.get("train", [])
    for extra in sorted(declared, key=lambda name: (name != "train", name)):
        installed, missing = [], []
        for package, versions in declared[extra]:
            if extra != "train" and (package, versions) in trains:
                continue  # listed once, with `train`
            try:
                installed.append(f"{package} {version(package)}")
            except PackageNotFoundError:
                missing.append(package + versions)
        yield extra, ", ".join(installed), ", ".join(missing)


def _packages_by_extra() -> dict[str, list[tuple[str, str]]]:
    """(name, versions) of the packages of each extra, as the installed distribution declares them."""
    try:
        declared = requires("spml") or []
    except PackageNotFoundError:  # used from a source tree
        declared = []
    packages: dict[str, list[tuple[str, str]]] = {}
    for line in declared:
        found = _REQUIREMENT.fullmatch(line.strip())
        if found and found[3] and found[1] != "spml" and found[3] not in _FOR_DEVELOPERS:
            packages.setdefault(found[3], []).append((found[1], found[2].strip()))
    return packages
