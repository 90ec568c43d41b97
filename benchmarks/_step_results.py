"""The tables of `benchmarks/step.py` from its cells; what is missing is shown empty."""

import json
import platform
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

RESULTS = Path(__file__).parent.parent / "docs" / "results"
BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"
TARGETS = {"tiny-8x8x12": 3.0, "tiny-32x8x12": 3.0, "smollm2-4x8x64": 2.5}  # times as fast as the reference
MEMORY_TARGET = 0.6
SHARE_TARGET = 35.0  # per cent of the large product, stated for bf16
FLAT = 10.0  # per cent
BUSY = 0.5  # load average, beyond the benchmark's own processes, at which a figure is marked
GIB = 2**30
Result = dict[str, Any]


def write_results(cells: Path, planned: Sequence[str]) -> Path:
    """Write the generated part of docs/results/speed.md; return its path."""
    page = RESULTS / "speed.md"
    RESULTS.mkdir(parents=True, exist_ok=True)
    text = page.read_text() if page.exists() else f"# Speed\n\n{BEGIN}\n{END}\n"
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    known = read(cells)
    minutes = sum(result["seconds"] for result in known.values()) / 60
    done = f"{sum(name in known for name in planned)} of {len(planned)} cells run, {minutes:.0f} minutes in all."
    page.write_text(before + BEGIN + "\n\n" + tables(cells) + "\n\n" + done + "\n\n" + END + after)
    return page


def read(cells: Path) -> dict[str, Result]:
    """All cells of a folder by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(cells.glob("*.json"))}


def tables(cells: Path) -> str:
    """Every table, with a line on the machine and the versions."""
    known = read(cells)
    by_kind = {
        kind: [r for r in known.values() if r["kind"] == kind] for kind in ("steps", "memory", "cost", "profile")
    }
    parts = [machine(known), *steps(by_kind["steps"]), *memory(by_kind["memory"])]
    for result in by_kind["cost"]:
        parts += [f"### Update by batch size ({title(result)})", *cost(result)]
    for result in by_kind["profile"]:
        parts += [f"### Where one step's time goes ({title(result)})", *profile(result)]
    return "\n\n".join(part for part in parts if part)


def line(cells: Sequence[str]) -> str:
    """One line of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join([line(head), "|" + "---|" * len(head), *map(line, lines)])


def title(result: Result) -> str:
    """Model, shape and threads of a cell."""
    job = result["job"]
    model = "default model" if job["model"] == "default" else Path(job["model"]).name
    shape = f"{job['prompts']}x{job['group_size']}x{job['tokens']}"
    return f"{model}, {shape}, {job['threads']} thread{'s' * (job['threads'] > 1)}"


def time_of(seconds: float) -> str:
    """Seconds or milliseconds."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"


def machine(known: dict[str, Result]) -> str:
    """What it ran on, which versions, and whether something else ran."""
    if not known:
        return "Nothing was measured yet."
    versions = {arm["versions"] for result in known.values() for arm in result["arms"].values() if "versions" in arm}
    busy = sorted(name for name, result in known.items() if result["load"] > BUSY)
    said = (
        f"{next(iter(known.values()))['cores']} cores: {processor()}. Reference: {max(versions, key=len, default='–')}."
    )
    if busy:
        said += f" The machine was busy with something else before {', '.join(busy)}: read those as ratios only."
    return said


def processor() -> str:
    """The processor and those of its units that matter here."""
    try:
        lines = [part.partition(":") for part in Path("/proc/cpuinfo").read_text().splitlines()]
    except OSError:
        return platform.machine()
    about = {name.strip(): value.strip() for name, _, value in lines}
    flags = set(about.get("flags", "").split())
    units = [unit for unit in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if unit in flags]
    return f"{about.get('model name', platform.machine())} ({', '.join(units) or 'no vector units known'})"


def steps(results: Sequence[Result]) -> list[str]:
    """Whole steps of both arms, and how many times as fast ours is."""
    if not results:
        return []
    rows = []
    for result in results:
        ours, theirs = (result["arms"].get(arm) for arm in ("shoal", "trl"))
        target = next((f">= {t:g}x" for name, t in TARGETS.items() if result["cell"].startswith(name)), "")
        rows.append([title(result), spread(theirs), spread(ours), *ratios(ours, theirs), target, sampling(ours)])
    head = ["", "TRL: min / median", "Shoal: min / median", "ratio of minima", "of medians", "target", "sampling"]
    silent = [r["cell"] for r in results if r["arms"].get("shoal", {}).get("signal_rows") not in (None, rows_of(r))]
    note = f"Rows without signal in {', '.join(silent)}: those figures are not comparable." if silent else ""
    return ["### Whole step", table(head, rows), note]


def rows_of(result: Result) -> int:
    """Completions of one step."""
    return result["job"]["prompts"] * result["job"]["group_size"]


def spread(arm: Result | None) -> str:
    """Minimum and median of an arm's steps."""
    return f"{time_of(min(arm['seconds']))} / {time_of(median(arm['seconds']))}" if arm else ""


def ratios(ours: Result | None, theirs: Result | None) -> tuple[str, str]:
    """How many times as fast ours is; marked where the arms did not take turns."""
    if not ours or not theirs:
        return "", ""
    apart = "" if ours["run"] == theirs["run"] else " (not in turn)"
    least = min(theirs["seconds"]) / min(ours["seconds"])
    return f"**{least:.2f}x**{apart}", f"{median(theirs['seconds']) / median(ours['seconds']):.2f}x"


def sampling(arm: Result | None) -> str:
    """The part of our step that is sampling."""
    if not arm:
        return ""
    return f"{100 * median(s / w for s, w in zip(arm['sample_seconds'], arm['seconds'], strict=True)):.0f} %"


def memory(results: Sequence[Result]) -> list[str]:
    """Peak resident memory of both arms."""
    if not results:
        return []
    rows = []
    for result in results:
        peaks = [result["arms"].get(arm, {}).get("peak") for arm in ("trl", "shoal")]
        ratio = f"**{peaks[1] / peaks[0]:.2f}**" if all(peaks) else ""
        rows.append(
            [title(result), *(f"{p / GIB:.2f} GiB" if p else "" for p in peaks), ratio, f"<= {MEMORY_TARGET:g}"]
        )
    return ["### Peak memory", table(["", "TRL", "Shoal", "ratio", "target"], rows)]


def cost(result: Result) -> list[str]:
    """Tokens a second and share of the large product by batch size, and how flat the cost of a token is."""
    found = result["arms"]["shoal"]
    rate, rows, each = found["matmul_flops"], [], []
    for batch, values in found["batches"].items():
        least = min(values["seconds"])
        each.append(least / values["tokens"])
        share = f"{100 * values['flops'] / least / rate:.0f} %"
        rows.append([batch, time_of(least), f"{values['tokens'] / least:,.0f}", share, f"{each[-1] / each[0]:.2f}"])
    head = ["rows", "update", "completion tokens/s", "of the large product", "cost of a token"]
    flat = 100 * (max(each) / min(each) - 1)
    said = (
        f"Large product (2048 x 2048 x 2048, float32): {rate / 1e9:.0f} GFLOP/s. Dearest against cheapest token: "
        f"{flat:.0f} % (target {FLAT:.0f} %). The target of {SHARE_TARGET:.0f} % is stated for bf16."
    )
    return [table(head, rows), said]


def profile(result: Result) -> list[str]:
    """Operators by their own time, and what is left for Python."""
    found = result["arms"]["shoal"]
    watched, inside = found["profiled_seconds"], found["operator_seconds"]
    rows = [[f"`{name}`", time_of(s), f"{100 * s / watched:.0f} %", f"{n:,}"] for name, s, n in found["operators"]]
    outside = max(0.0, watched - inside)
    rows.append(["outside operators (Python)", time_of(outside), f"{100 * outside / watched:.0f} %", ""])
    said = (
        f"{time_of(found['seconds'])} a step, {100 * found['sample_seconds'] / found['seconds']:.0f} % of it sampling; "
        f"{time_of(watched)} under the profiler with {found['calls']:,} operator calls."
    )
    return [said, table(["own time of", "", "share", "calls"], rows)]
