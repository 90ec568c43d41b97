"""Settings of the whole suite, and the rule that no test is skipped unnoticed."""

import os
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Before any test imports torch: the workers of a parallel run must not fight for cores.
for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# No deadline: a timed assertion fails on a busy machine, and not for the reason it names.
settings.register_profile("shoal", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# CI must fail for what was submitted, not for the luck of a draw.
settings.register_profile("ci", settings.get_profile("shoal"), derandomize=True)


def strict() -> bool:
    """Whether unlisted skips fail the run: in CI, and wherever SHOAL_STRICT_SKIPS asks for it."""
    return any(os.environ.get(name, "") not in {"", "0", "false"} for name in ("CI", "SHOAL_STRICT_SKIPS"))


settings.load_profile("ci" if strict() else "shoal")


class SkipPolicy:
    """Collects what was skipped, and fails the run over what `skips.toml` does not allow."""

    def __init__(self, listing: Path) -> None:
        entries = tomllib.loads(listing.read_text(encoding="utf-8")).get("skip", [])
        for entry in entries:
            if set(entry) != {"test", "reason"} or not all(entry.values()):
                raise pytest.UsageError(f"{listing}: each [[skip]] has a test and a reason, nothing else: {entry}")
        self.patterns: list[str] = [entry["test"] for entry in entries]
        self.unlisted: dict[str, str] = {}

    def note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        """Takes one report; an expected failure also counts as skipped for pytest, but the test has run."""
        if not report.skipped or hasattr(report, "wasxfail"):
            return
        if not any(report.nodeid == pattern or fnmatchcase(report.nodeid, pattern) for pattern in self.patterns):
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self.unlisted[report.nodeid] = reason

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Single tests."""
        self.note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Modules that skip themselves whole."""
        self.note(report)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Turns a green run red; a red one stays what it is."""
        if self.unlisted and session.exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Says which, and what to do."""
        if self.unlisted:
            terminalreporter.section("skipped, but not listed in tests/skips.toml", red=True)
            for nodeid, reason in sorted(self.unlisted.items()):
                terminalreporter.line(f"{nodeid}: {reason}")


def pytest_configure(config: pytest.Config) -> None:
    """Registers the policy, once: in a parallel run the workers report to the process that holds it."""
    if strict() and not hasattr(config, "workerinput"):
        config.pluginmanager.register(SkipPolicy(Path(__file__).with_name("skips.toml")), "skip-policy")


@pytest.fixture(autouse=True, scope="session")
def _no_stray_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or writes the state of the person who runs the suite."""
    base = tmp_path_factory.getbasetemp() / "xdg"
    with pytest.MonkeyPatch.context() as patch:
        for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
            patch.setenv(name, str(base / name.lower()))
        yield
