"""A checkpoint in pickles is refused, unopened, with the command that converts it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from dragoman.models.config import ModelError
from dragoman.models.stored.opening import stored_weights


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "consolidated.00.pth", "model.pt"]
)
def test_pickles_are_refused_unopened_with_the_command_that_converts(name: str, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / name).write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    with pytest.raises(ModelError) as caught, stored_weights(model).open():
        pass
    told = str(caught.value)
    assert told.startswith(
        f"{model} holds no *.safetensors file, but {name}, a pickle, which can run code when it is read"
    )
    assert f"s, t = '{model}', '{model}-safetensors'; M.from_pretrained(s" in told
    assert "\n" not in told
    assert not (tmp_path / "ran").exists()


def test_pickles_beside_safetensors_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    assert [path.name for path in stored_weights(tmp_path).files] == ["model.safetensors"]
