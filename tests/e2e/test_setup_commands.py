"""Setting a node up as a newcomer or a script does: no terminal, no account, one identity, one process, clear lines."""

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.node.home import Home
from shoal.protocol.identity import Identity

SHOAL = [sys.executable, "-c", "from shoal.node.cli import main; main()"]


def environment(user: Path, **settings: str) -> dict[str, str]:
    """Return a user's environment, with nothing of whoever runs the tests in it."""
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(Path(__file__).parents[2] / ".ns"),
        "OMP_NUM_THREADS": "1",
        "HOME": str(user),
        **settings,
    }


def shoal(*words: str, env: dict[str, str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*SHOAL, *words],
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # no terminal to ask on
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def key_shown(env: dict[str, str], cwd: Path | None = None) -> str:
    done = shoal("keys", "show", "--json", env=env, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["key"]


def test_a_node_is_set_up_without_terminal_or_account_and_is_the_same_from_any_folder(tmp_path: Path) -> None:
    """Failures 3 and 8."""
    env = environment(tmp_path)
    first = shoal("init", env=env)
    assert first.returncode == 0, first.stderr
    again = shoal("init", env=env, cwd=tmp_path)
    assert again.returncode == 0
    assert "nothing to do" in again.stdout
    home = tmp_path / ".local" / "share" / "shoal"
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert stat.S_IMODE((home / "identity.key").stat().st_mode) == 0o600
    assert shoal("config", "check", env=env).returncode == 0
    key = key_shown(env)
    assert key == key_shown(env, home)
    assert key in first.stdout


def test_a_lost_machine_is_replaced_from_its_backup(tmp_path: Path) -> None:
    """Failure 8."""
    old, new = environment(tmp_path / "old"), environment(tmp_path / "new", SHOAL_PASSPHRASE="a long one")
    file = str(tmp_path / "backup.pem")
    assert shoal("init", env=old).returncode == 0
    assert shoal("keys", "backup", file, env=old | {"SHOAL_PASSPHRASE": "a long one"}).returncode == 0
    key = key_shown(old)
    again = shoal("keys", "backup", file, env=old)
    assert (again.returncode, again.stderr.count("\n")) == (3, 1)
    locked = shoal("keys", "restore", file, env=environment(tmp_path / "new"))
    assert locked.returncode == 2
    assert "--passphrase-file" in locked.stderr
    assert shoal("keys", "restore", file, env=new).returncode == 0
    assert key_shown(new) == key
    assert shoal("init", env=new).returncode == 0
    assert key_shown(new) == key


def test_a_second_process_on_one_home_is_refused_and_told_of_the_first(tmp_path: Path) -> None:
    """Failure 7."""
    env = environment(tmp_path, SHOAL_HOME=str(tmp_path / "home"))
    assert shoal("init", env=env).returncode == 0
    with Home(tmp_path / "home").lock():
        for words in (["run"], ["keys", "rotate"]):
            done = shoal(*words, env=env)
            assert done.returncode == 2
            assert f"another process lives in {tmp_path}/home: pid {os.getpid()} on " in done.stderr
            assert done.stderr.count("\n") == 1
    assert shoal("keys", "rotate", env=env).returncode == 0


@pytest.mark.parametrize(
    ("words", "settings", "expected"),
    [
        (["--minibatches", "3"], {}, "do not divide into --minibatches 3"),
        ([], {"SHOAL_LEARNING_MINIBATCHES": "3"}, "learning.minibatches is set in environment"),
        ([], {"SHOAL_MIXING_LOCL": "3"}, "did you mean SHOAL_MIXING_LOCAL?"),
        (["--observe", "--rollouts-only"], {}, "exclude each other"),
        (["--lokal", "3"], {}, "--lokal"),
        (["--local", "many"], {}, "--local"),
    ],
)
def test_wrong_settings_end_with_2_and_one_line_before_anything_starts(
    tmp_path: Path, words: list[str], settings: dict[str, str], expected: str
) -> None:
    """Failure 9."""
    Identity.generate().save(Home.make(tmp_path).identity)
    done = shoal("run", *words, env=environment(tmp_path, SHOAL_HOME=str(tmp_path), **settings))
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("shoal: ")
    assert done.stderr.count("\n") == 1
    assert expected in done.stderr
    assert not (tmp_path / "shoal.db").exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_accepts_its_completion(tmp_path: Path, shell: str) -> None:
    done = shoal("completion", shell, env=environment(tmp_path))
    assert done.returncode == 0, done.stderr
    program = shutil.which(shell)
    if program is not None:  # bash is there wherever this runs; the others where somebody has installed them
        read = subprocess.run([program, "-n"], input=done.stdout, capture_output=True, text=True, check=False)
        assert (read.returncode, read.stderr) == (0, "")
    assert program is not None or shell != "bash"


def test_bash_completes_commands_and_flags(tmp_path: Path) -> None:
    script = shoal("completion", "bash", env=environment(tmp_path)).stdout
    (tmp_path / "shoal.bash").write_text(script)
    ask = """
        source "$1"
        COMP_WORDS=(shoal keys ro); COMP_CWORD=2; COMP_LINE="shoal keys ro"; COMP_POINT=${#COMP_LINE}
        "$(complete -p shoal | sed -E 's/.*-F ([^ ]+).*/\\1/')" shoal ro keys
        echo "${COMPREPLY[@]}"
    """
    done = subprocess.run(
        ["bash", "-c", ask, "bash", str(tmp_path / "shoal.bash")], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["rotate"], done.stderr
