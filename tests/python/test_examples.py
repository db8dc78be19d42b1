# SPDX-License-Identifier: Apache-2.0
"""The examples run, and find what they promise."""

import importlib.util

import plain
import pytest

FOLDER = plain.ROOT / "examples" / "python"


def run(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name, worst", [("packing", 1e-5), ("generate", 1e-5),
                                         ("serving", 1e-5), ("long_context", 1e-5)])
def test_of_numpy(name, worst, capsys):
    assert run(name).main() < worst
    assert capsys.readouterr().out


def test_custom_score():
    pytest.importorskip("torch", reason="PyTorch is not installed")
    assert run("custom_score").main() < 0.2


def test_train_gpt():
    pytest.importorskip("torch", reason="PyTorch is not installed")
    module = run("train_gpt")
    module.STEPS = 40
    first = 3.9  # that of a guess among all letters
    assert module.main() < 0.75 * first


def test_each_example_is_tested():
    assert {path.stem for path in FOLDER.glob("*.py")} == {
        "packing", "generate", "serving", "long_context", "custom_score", "train_gpt"}
