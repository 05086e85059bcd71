"""Checkpoints: the background writer, damaged files, and an optimiser's state."""

import threading

import pytest
import torch

from spml.errors import InputError
from spml.runs import files as run_files
from spml.runs.checkpoint import BackgroundWriter, load_optimiser, optimiser_tensors
from spml.runs.files import read_tensors


def test_background_writer_copies_and_reports_failures(tmp_path, monkeypatch):
    value, proceed = torch.zeros(3), threading.Event()
    save = run_files.save_file
    monkeypatch.setattr(run_files, "save_file", lambda *args, **kwargs: proceed.wait(60) and save(*args, **kwargs))
    with BackgroundWriter() as files:
        files.write((tmp_path / "a.safetensors", {"value": value}, {"step": 1}))
        value.fill_(1.0)  # as training would
        assert not (tmp_path / "a.safetensors").exists()
        proceed.set()
        files.write(*((tmp_path / name, {"value": value}, {"step": 2}) for name in ("b.safetensors", "c.safetensors")))
    assert read_tensors(tmp_path / "a.safetensors")[0]["value"].tolist() == [0, 0, 0]
    for name in ("b.safetensors", "c.safetensors"):
        assert read_tensors(tmp_path / name)[0]["value"].tolist() == [1, 1, 1]
    lost = (tmp_path / "nowhere" / "d.safetensors", {"value": value}, {})
    files.write(lost)
    with pytest.raises(InputError, match=r"d\.safetensors cannot be written: the folder"):
        files.write(lost)
    files.write(lost)
    files.__exit__(KeyboardInterrupt)  # the original error is not hidden by the failed write
    files.write(lost)
    with pytest.raises(InputError, match="cannot be written"):
        files.__exit__(None)


def test_damaged_checkpoint_is_named(tmp_path):
    (tmp_path / "x.safetensors").write_bytes(b"not one")
    with pytest.raises(InputError, match=r"x\.safetensors is damaged, or was not written by spml"):
        read_tensors(tmp_path / "x.safetensors")
    with pytest.raises(InputError, match="no such file"):
        read_tensors(tmp_path / "y.safetensors")


def test_optimiser_state_is_restored_with_the_layout_of_its_parameters():
    def trained(steps: int) -> tuple[torch.nn.Parameter, torch.optim.Adam]:
        torch.manual_seed(0)
        weight = torch.nn.Parameter(torch.randn(4, 3, 2, 2).contiguous(memory_format=torch.channels_last))
        optimiser = torch.optim.Adam([weight], lr=0.1)
        for _ in range(steps):
            optimiser.zero_grad()
            weight.square().sum().backward()
            optimiser.step()
        return weight, optimiser

    _, old = trained(3)
    weight, new = trained(0)
    plain = {name: tensor.contiguous() for name, tensor in optimiser_tensors(old).items()}
    load_optimiser(new, plain)
    state = new.state[weight]
    assert float(state["step"]) == 3
    assert state["exp_avg"].stride() == weight.stride()
    assert torch.equal(state["exp_avg"], next(iter(old.state.values()))["exp_avg"])
