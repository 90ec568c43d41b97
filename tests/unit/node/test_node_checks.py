"""The doctor's checks, each with a machine that is well and one that is not."""

import json
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.node.checks import finding, machine, memory, network
from shoal.node.checks.finding import Check, Finding
from shoal.protocol.errors import EnvironmentFault
from shoal.trainer.model import DEFAULT_MODEL

PEER = "12D3KooWKRyzVWW6ChFjQjK4miCty85Niy48tpPV95XdKu1BcvMA"
GIB = 2**30


def test_a_check_that_never_returns_is_left_behind() -> None:
    release = threading.Event()

    def hang() -> Finding:
        release.wait(60)
        return Finding("ok", "too late")

    checks = [Check("hangs", hang, seconds=0.05), Check("hangs badly", hang, 0.05, "fail"), Check("well", lambda: WELL)]
    try:
        found = [result.finding for result in finding.run(checks)]
    finally:
        release.set()
    assert [f.verdict for f in found] == ["warn", "fail", "ok"]
    assert "not done within" in found[0].detail


WELL = Finding("ok", "well")


@pytest.mark.parametrize("error", [EnvironmentFault("no\x1broom"), OSError(13, "Permission denied"), ValueError("odd")])
def test_what_a_check_raises_is_a_finding(error: Exception) -> None:
    def look() -> Finding:
        raise error

    found = finding.run_one(Check("x", look))
    assert found.verdict == "fail"
    assert "\x1b" not in found.detail


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_mistake_of_ours_does_not_end_the_doctor() -> None:
    def look() -> Finding:
        raise RuntimeError("a bug")

    assert finding.run_one(Check("x", look)).verdict == "fail"
    assert finding.run_one(Check("y", lambda: WELL)) is WELL


def test_packages_are_named_with_versions() -> None:
    found = machine.packages()
    assert found.verdict == "ok"
    assert "torch 2" in found.detail


def test_a_missing_package_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "PACKAGES", ("torch", "shoal-no-such-package"))
    assert machine.packages().verdict == "fail"
    assert "shoal-no-such-package" in machine.packages().detail


def test_the_processor_is_well_and_an_absent_device_fails() -> None:
    assert machine.device("cpu").verdict in ("ok", "warn")  # warn: there is a GPU that nobody uses
    assert "cores usable" in machine.device("cpu").detail
    assert machine.device("cuda:77").verdict == "fail"
    assert machine.device("nonsense").verdict == "fail"


def test_more_threads_than_cores_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    assert machine.threads(2).verdict == "ok"
    assert machine.threads(3).verdict == "warn"


@pytest.mark.parametrize(("free", "verdict"), [(0.5, "fail"), (1.5, "warn"), (5.9, "warn"), (6.1, "ok")])
def test_disk_space_counts_blobs_and_a_reserve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: float, verdict: str
) -> None:
    usage = type("Usage", (), {"free": int(free * GIB)})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    found = machine.disk(tmp_path / "not" / "yet" / "there", 1024)
    assert found.verdict == verdict
    assert str(tmp_path) in found.detail


@pytest.mark.parametrize(
    ("offset", "verdict"), [(0.2, "ok"), (-0.9, "ok"), (1.5, "warn"), (-2.9, "warn"), (3.1, "fail")]
)
def test_the_clock_against_the_peers(offset: float, verdict: str) -> None:
    found = machine.clock({"network": {"clock_offset_seconds": offset}})
    assert found.verdict == verdict
    assert ("behind" if offset > 0 else "ahead of") in found.detail


@pytest.mark.parametrize(("kernel", "verdict"), [(True, "ok"), (False, "warn"), (None, "warn")])
def test_the_clock_by_the_kernel(monkeypatch: pytest.MonkeyPatch, kernel: bool | None, verdict: str) -> None:
    monkeypatch.setattr(machine, "_kernel_synchronized", lambda: kernel)
    assert machine.clock(None).verdict == verdict
    assert machine.clock({"network": {"clock_offset_seconds": None}}).verdict == verdict


def test_the_kernel_can_be_asked() -> None:
    assert machine._kernel_synchronized() in (True, False, None)


def model_folder(folder: Path, tensors: dict[str, list[int]], config: dict[str, int]) -> Path:
    folder.mkdir()
    header = {"__metadata__": {"format": "pt"}} | {
        name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]} for name, shape in tensors.items()
    }
    packed = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(packed)) + packed)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_parameters_are_counted_from_the_header_alone(tmp_path: Path) -> None:
    config = {"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 4, "num_key_value_heads": 2}
    shape = memory.shape_of(model_folder(tmp_path / "m", {"a": [1000, 8], "b": [7], "c": []}, config))
    assert shape.parameters == 8000 + 7 + 1
    assert (shape.layers, shape.kv_width, shape.inner) == (2, 4, 32)


def test_the_default_model_has_as_many_as_torch_says() -> None:
    assert memory.shape_of(DEFAULT_MODEL).parameters == 110_912


@pytest.mark.parametrize("content", [b"", b"\xff" * 100, struct.pack("<Q", 4) + b"nope", struct.pack("<Q", 2) + b"[]"])
def test_damaged_weights_are_named(tmp_path: Path, content: bytes) -> None:
    folder = model_folder(tmp_path / "m", {"a": [1]}, {})
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(EnvironmentFault, match="cannot be read"):
        memory.shape_of(folder)


def test_a_damaged_config_is_named(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m", {"a": [1]}, {})
    (folder / "config.json").write_text("[1]")
    with pytest.raises(EnvironmentFault, match="JSON object"):
        memory.shape_of(folder)


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match=str(tmp_path)):
        memory.shape_of(tmp_path)


def test_what_training_needs() -> None:
    shape = memory.Shape(parameters=1000, layers=2, hidden=8, inner=32, kv_width=4, vocabulary=64)
    parts = memory.needed(shape, rows=16, answer_tokens=44)
    assert parts["weights, gradients and moments"] == 16_000
    assert parts["engine"] == 4000
    activations = 4 * 2048 * (2 * (12 * 8 + 4 * 32) + 3 * 64)
    cache = 2 * 2 * 4 * 16 * 300 * 4 + 2 * 16 * 64 * 4
    assert parts["cache or activations"] == max(activations, cache) == activations


@pytest.mark.parametrize(("have", "verdict"), [(3.0, "fail"), (3.8, "warn"), (8.0, "ok")])
def test_memory_fit(monkeypatch: pytest.MonkeyPatch, have: float, verdict: str) -> None:
    monkeypatch.setattr(memory, "available", lambda: (have * GIB, "available"))
    found = memory.memory(memory.Shape(parameters=100_000_000), 64, None, "cpu")  # 20 bytes each, and the libraries
    assert found.verdict == verdict
    assert "0.10 B parameters need about 3.4 GiB" in found.detail


def system(root: Path, cgroup: str, files: dict[str, str]) -> tuple[Path, Path]:
    proc, groups = root / "proc", root / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal:  99 kB\nMemAvailable:   10485760 kB\nHugePages_Total:  0\n")
    (proc / "self" / "cgroup").write_text(cgroup)
    for name, content in files.items():
        path = groups / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return proc, groups


@pytest.mark.parametrize(
    ("cgroup", "files", "gibibytes"),
    [
        ("0::/a/b\n", {}, 10),
        ("0::/a/b\n", {"a/b/memory.max": "max\n"}, 10),
        ("0::/a/b\n", {"a/b/memory.max": f"{4 * GIB}\n", "a/b/memory.current": f"{GIB}\n"}, 3),
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": f"{2 * GIB}", "a/memory.current": f"{GIB}"}, 1),
        ("0::/\n", {"memory.max": f"{2 * GIB}", "memory.current": "0"}, 2),
        (
            "0::/a\n",
            {
                "a/memory.max": f"{4 * GIB}",
                "a/memory.current": f"{3 * GIB}",
                "a/memory.stat": f"anon 5\ninactive_file {2 * GIB}\n",
            },
            3,
        ),
        (
            "4:memory:/x\n1:cpu:/x\n",
            {"memory/x/memory.limit_in_bytes": f"{5 * GIB}", "memory/x/memory.usage_in_bytes": f"{GIB}"},
            4,
        ),
        ("3:cpu:/x\n", {"memory/x/memory.limit_in_bytes": "1"}, 10),
        ("0::/a\n", {"a/memory.max": f"{GIB}", "a/memory.current": f"{2 * GIB}"}, 0),
    ],
)
def test_control_groups_bound_what_there_is(
    tmp_path: Path, cgroup: str, files: dict[str, str], gibibytes: float
) -> None:
    assert memory.available(*system(tmp_path, cgroup, files))[0] == gibibytes * GIB


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_taken_port_fails_unless_our_own_node_holds_it(listener: int) -> None:
    for look in (network.ports, network.health_port):
        found = look("127.0.0.1", listener, None)
        assert found.verdict == "fail"
        assert str(listener) in found.detail
        assert "port" in found.advice
        assert look("127.0.0.1", listener, 4242).verdict == "ok"
        assert "4242" in look("127.0.0.1", listener, 4242).detail
        assert look("127.0.0.1", free_port(), None).verdict == "ok"


def test_a_port_taken_for_datagrams_alone_is_seen() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        assert "taken (UDP)" in network.ports("127.0.0.1", port, None).detail


def test_an_address_of_another_machine_is_a_finding() -> None:
    found = finding.run_one(Check("port", lambda: network.ports("192.0.2.1", 47700, None)))
    assert found.verdict == "fail"
    assert "192.0.2.1" in found.detail


@pytest.mark.parametrize(
    ("address", "place"),
    [
        (f"/ip4/192.0.2.7/tcp/47700/p2p/{PEER}", (socket.AF_INET, "192.0.2.7", 47700)),
        (f"/dns4/example.org/tcp/1/p2p/{PEER}", (socket.AF_INET, "example.org", 1)),
        (f"/dns/example.org/tcp/1/p2p/{PEER}", (0, "example.org", 1)),
        (f"/ip6/::1/tcp/5/p2p/{PEER}", (socket.AF_INET6, "::1", 5)),
        (f"/ip4/192.0.2.7/udp/47700/quic-v1/p2p/{PEER}", (socket.AF_INET, "192.0.2.7", 0)),
    ],
)
def test_where_a_multiaddr_leads(address: str, place: tuple[int, str, int]) -> None:
    assert network.place_of(address) == place


@pytest.mark.parametrize(
    "address", ["", "nonsense", "/ip4/1.2.3/tcp/1", "/ip4/192.0.2.7/tcp/1", f"/p2p/{PEER}", "\x1b["]
)
def test_what_is_no_bootstrap_is_said(address: str) -> None:
    with pytest.raises(ValueError, match=r"multiaddr|write") as caught:
        network.place_of(address)
    assert "\x1b" not in str(caught.value)


def test_bootstraps_that_answer_and_those_that_do_not(listener: int) -> None:
    alive = f"/dns4/localhost/tcp/{listener}/p2p/{PEER}"
    dead = f"/ip4/127.0.0.1/tcp/{free_port()}/p2p/{PEER}"
    assert network.bootstraps([alive]).verdict == "ok"
    mixed = network.bootstraps([dead, alive, "nonsense", f"/ip4/127.0.0.1/udp/1/quic-v1/p2p/{PEER}"])
    assert mixed.verdict == "warn"
    for words in ("Connection refused", "answers", "not a multiaddr", "no TCP port"):
        assert words in mixed.detail
    none = network.bootstraps([dead])
    assert none.verdict == "warn", "a node trains alone: no failure"
    assert "alone" in none.advice
    assert network.bootstraps([]).verdict == "warn"


def test_a_bootstrap_that_never_answers_costs_no_more_than_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def resolver(*_: object) -> list[object]:
        release.wait(60)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", resolver)
    monkeypatch.setattr(network, "CONNECT_SECONDS", 0.05)
    monkeypatch.setattr(network, "RESOLVE_SECONDS", 0.05)
    try:
        found = network.bootstraps([f"/dns4/example.org/tcp/1/p2p/{PEER}"] * 3)
    finally:
        release.set()
    assert found.detail.count("no answer in time") == 3


@pytest.mark.parametrize(
    ("verdict", "expected", "says"),
    [
        ("public", "ok", "reachable from outside"),
        ("relayed", "ok", "through a relay"),
        ("private", "warn", "not reachable"),
        ("unknown", "warn", "not known yet"),
    ],
)
def test_reachability_advises(verdict: str, expected: str, says: str) -> None:
    status = {"network": {"reachability": {"verdict": verdict, "seen_as": ["/ip4/192.0.2.7\x1b[0m"], "advice": ""}}}
    found = network.reachability(status, 47700)
    assert found.verdict == expected
    assert says in found.detail
    assert "\x1b" not in found.detail
    if verdict == "private":
        assert "47700" in found.advice
    assert network.reachability(None, 47700).verdict == "ok"
