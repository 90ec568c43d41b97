"""The command as its user has it: exit codes, one clear line for each mistake, Ctrl-C, models that load elsewhere."""

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SHOAL = [sys.executable, "-c", "from shoal.node.cli import main; main()"]
SMALL = ["--nodes", "2", "--local", "2", "--external", "2", "--group-size", "4", "--start", "same"]
ENDLESS = [*SMALL, "--eval-items", "8", "--eval-every", "2", "--checkpoint-every", "2"]
QUICK = [*ENDLESS, "--rounds", "4"]


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2] / ".ns"), "COLUMNS": "100"}


def shoal(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*SHOAL, *arguments], cwd=cwd, env=environment(), capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["simulate", "--bogus", "1"], 2, "--bogus"),
        (["simulate", "--nodes", "many"], 2, "--nodes"),
        (["simulate", "--tasks", "rg/chain_sums"], 2, "rg/chain_sum"),
        (["simulate", "--attack", "nonsense:0.25"], 2, "nonsense"),
        (["simulate", "--nodes", "1"], 2, "needs peers"),
        (["simulate", "--local", "4", "--external", "3"], 2, "do not divide"),
        (["simulate", "--model", "nowhere"], 3, "nowhere"),
        (["simulate", "--resume", "--out", "nothing"], 2, "no run to resume"),
        (["simulate", "--device", "cuda:7", *QUICK], 2, "cuda:7"),
        (["simulate", "--out", "/proc/run", *QUICK], 3, "cannot write"),
        (["eval", "nowhere"], 3, "nowhere"),
        (["eval", "default", "--items", "0"], 2, "--items"),
        (["sample", "default", "reverse abc=", "--count", "0"], 2, "--count"),
        (["frobnicate"], 2, "frobnicate"),
    ],
)
def test_mistakes_get_one_clear_line_and_their_exit_code(
    tmp_path: Path, arguments: list[str], code: int, says: str
) -> None:
    result = shoal(*arguments, cwd=tmp_path)
    assert result.returncode == code, result.stderr
    assert says in result.stderr
    assert result.stderr.startswith("shoal: ")
    assert len(result.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == [], "something was half-written"


def test_a_model_directory_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    from shoal.trainer.model import DEFAULT_MODEL

    model = tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "model.safetensors"):
        (model / name).write_bytes((DEFAULT_MODEL / name).read_bytes())
    result = shoal("simulate", "--model", str(model), "--out", "run", cwd=tmp_path)
    assert result.returncode == 3
    assert "tokenizer" in result.stderr
    assert not (tmp_path / "run").exists()


def test_a_simulation_leaves_report_metrics_and_models_that_load_elsewhere(tmp_path: Path) -> None:
    result = shoal("simulate", "--out", "run", "--arms", "swarm", "isolated", *QUICK, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "\x1b" not in result.stdout, "escape codes without a terminal"
    assert "report: run/report.html" in result.stdout
    assert "<html" in (tmp_path / "run" / "report.html").read_text()
    script = (
        "import sys; from transformers import AutoModelForCausalLM, AutoTokenizer; "
        "m = AutoModelForCausalLM.from_pretrained(sys.argv[1]); t = AutoTokenizer.from_pretrained(sys.argv[1]); "
        "print(m.generate(**t('copy ab=', return_tensors='pt', return_token_type_ids=False), max_new_tokens=2).shape)"
    )
    model = str(tmp_path / "run" / "models" / "swarm" / "node-0")
    loaded = subprocess.run(
        [sys.executable, "-c", script, model], capture_output=True, text=True, timeout=300, check=False
    )
    assert loaded.returncode == 0, loaded.stderr
    assert "torch.Size([1," in loaded.stdout
    measured = shoal("eval", model, "--items", "16", "--json", cwd=tmp_path)
    assert measured.returncode == 0, measured.stderr
    accuracy = json.loads(measured.stdout)["all"]
    assert accuracy["low"] <= accuracy["accuracy"] <= accuracy["high"]
    assert accuracy["items"] == 16
    tried = shoal("sample", model, "copy ab=", "--count", "2", cwd=tmp_path)
    assert tried.returncode == 0, tried.stderr
    assert "completion" in tried.stdout


def test_ctrl_c_ends_cleanly_and_resume_goes_on(tmp_path: Path) -> None:
    command = [*SHOAL, "simulate", "--out", "run", *ENDLESS, "--rounds", "4000", "--arms", "swarm"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline(), "no progress line came"
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "--resume" in said
    assert (tmp_path / "run" / "report.html").exists()
    events = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert events[-1]["event"] == "end"
    assert events[-1]["complete"] is False


def test_a_full_disk_is_one_clear_line_and_exit_code_3(tmp_path: Path) -> None:
    def tiny_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    result = subprocess.run(
        [*SHOAL, "simulate", "--out", "run", *QUICK],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        preexec_fn=tiny_files,
        check=False,
    )
    assert result.returncode == 3, result.stderr
    assert len([line for line in result.stderr.splitlines() if line.startswith("shoal: ")]) == 1
