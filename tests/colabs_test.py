# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The notebooks: they run, without warnings, and match their text files."""

import importlib.metadata
import os
import pathlib
import subprocess
import sys
import types

import jupytext
import nbformat
import pytest

ROOT = pathlib.Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "colabs").glob("*.ipynb"))

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)


def code_cells(notebook):
  return [cell for cell in notebook.cells if cell.cell_type == "code"]


def install_cell(path):
  (cell,) = (
      cell
      for cell in code_cells(nbformat.read(path, as_version=4))
      if "google.colab" in cell.source
  )
  return cell.source


@pytest.fixture
def on_colab(monkeypatch, tmp_path):
  """Pretends to be Colab; returns the list of commands that would be run."""
  commands = []
  monkeypatch.chdir(tmp_path)
  monkeypatch.setitem(sys.modules, "google", types.ModuleType("google"))
  monkeypatch.setitem(
      sys.modules, "google.colab", types.ModuleType("google.colab")
  )
  monkeypatch.setattr(
      subprocess, "run", lambda command, **_: commands.append(command)
  )
  return commands


@each_notebook
def test_runs_as_a_reader_would_run_it(path, tmp_path):
  # A process and a kernel of its own: neither the settings of these tests nor
  # their import hooks apply to the notebook, nor theirs to Jupyter's code.
  executed = tmp_path / path.name
  command = "import nbclient.cli; nbclient.cli.main()"
  done = subprocess.run(
      [sys.executable, "-c", command, str(path), f"--output={executed}"],
      env=os.environ | {"DIFF_JAX_NOTEBOOK_STEPS": "2"},
      capture_output=True,
      text=True,
  )
  assert done.returncode == 0, done.stderr
  pictures = 0
  for cell in code_cells(nbformat.read(executed, as_version=4)):
    outputs = [output for output in cell.outputs if "data" in output]
    found = sum("image/png" in output.data for output in outputs)
    assert found == cell.source.count("plt.show()"), cell.source
    pictures += found
    for output in cell.outputs:
      assert output.get("name") != "stderr", output.text  # e.g. a warning
  assert pictures


@each_notebook
def test_text_file_and_notebook_say_the_same(path):
  notebook = nbformat.read(path, as_version=4)
  text = jupytext.read(path.with_suffix(".py"))
  assert [(cell.cell_type, cell.source) for cell in notebook.cells] == [
      (cell.cell_type, cell.source) for cell in text.cells
  ], f"run: jupytext --sync {path.relative_to(ROOT)}"


@each_notebook
def test_stores_no_outputs_and_no_traces_of_a_machine(path):
  notebook = nbformat.read(path, as_version=4)
  nbformat.validate(notebook)
  assert notebook.metadata.keys() <= {"jupytext", "kernelspec"}
  assert notebook.metadata.kernelspec == {
      "display_name": "Python 3",
      "language": "python",
      "name": "python3",
  }
  for cell in notebook.cells:
    assert cell.metadata.keys() <= {"lines_to_next_cell"}  # jupytext's
  for cell in code_cells(notebook):
    assert not cell.outputs
    assert cell.execution_count is None


@each_notebook
def test_badge_opens_this_notebook(path):
  first = nbformat.read(path, as_version=4).cells[0].source
  assert f"/blob/main/colabs/{path.name})" in first


@each_notebook
def test_supported_jax_is_that_of_the_package(path):
  (line,) = (
      line
      for line in install_cell(path).splitlines()
      if line.startswith("SUPPORTED_JAX")
  )
  jax_range = line.split('"')[1]
  assert f'"jax{jax_range}"' in (ROOT / "pyproject.toml").read_text()


@each_notebook
def test_installs_on_colab_and_keeps_its_jax(path, on_colab, tmp_path):
  exec(install_cell(path), {})
  (command,) = on_colab
  assert command[:4] == [sys.executable, "-m", "pip", "install"]
  constraints = tmp_path / command[command.index("-c") + 1]
  version = importlib.metadata.version
  assert constraints.read_text().splitlines() == [
      f"jax=={version('jax')}",
      f"jaxlib=={version('jaxlib')}",
  ]


@each_notebook
def test_refuses_an_unsupported_jax(path, on_colab, monkeypatch):
  monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.7.2")
  with pytest.raises(AssertionError, match=r"has jax 0\.7\.2.*restart"):
    exec(install_cell(path), {})
  assert not on_colab  # nothing was installed


@each_notebook
def test_does_nothing_elsewhere(path, on_colab, monkeypatch):
  monkeypatch.setitem(sys.modules, "google.colab", None)  # cannot be imported
  exec(install_cell(path), {})
  assert not on_colab
