"""`shoal bench`: this machine's speed with a model, and the settings that follow from it. One screen, or JSON."""

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from shoal.node.commands.output import console, count, print_json, shown

if TYPE_CHECKING:
    from shoal.node.bench.run import Bench


def bench(
    *,
    model: str = "default",
    device: str = "cpu",
    threads: int | None = None,
    max_tokens: int = 16,
    seconds: float = 20.0,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Measure this machine with a model: sampling, updates, their share of its matrix products, and what to set.

    Parameters
    ----------
    model
        `default`, or a directory that transformers can load. Nothing is written there.
    device
        cpu, or cuda:0.
    threads
        Threads for tensor arithmetic; when left out, one and all cores are tried.
    max_tokens
        Length of each completion.
    seconds
        About how long it may take, loading left out.
    json
        Print one JSON object instead of a screen.
    """
    from shoal.node.bench.run import Settings, bench

    with Console(stderr=True).status("measuring …") as status:
        found = bench(Settings(model, device, threads, max_tokens, seconds), status.update)
    if json:
        print_json(found.plain())
    else:
        show(found)
    return 0


def show(found: "Bench") -> None:
    """Print what was found on one screen."""
    from shoal.node.bench.advice import memory_name, size_name

    advice, rates = found.advice, found.matmul
    products = ", ".join(f"{name} {rate / 1e9:,.3g} GFLOP/s" for name, rate in rates.items())
    out = console()
    out.print(f"machine   {shown(found.device)}, {found.cores} cores, {memory_name(found.memory_bytes)} of memory free")
    out.print(f"products  {products} (large, --threads {advice.threads})")
    out.print(f"model     {shown(found.model)}, {size_name(found.parameters)} parameters")
    table = Table("rows", "sampling tokens/s", "of the products", "update tokens/s", "of the products")
    for sampled, updated in zip(found.sampling, found.updating, strict=True):
        speeds = [(count(s.tokens_per_second), f"{100 * s.share:.3g} %") for s in (sampled, updated)]
        table.add_row(str(sampled.rows), *speeds[0], *speeds[1])
    out.print(table)
    out.print(
        f"suggested --threads {advice.threads} --dtype {advice.dtype} --group-size {advice.group_size}, "
        f"{advice.prompts} prompts a pass, {advice.micro_tokens:,} tokens a forward pass",
        soft_wrap=True,
    )
    out.print(f"fits      full training of a model of up to about {size_name(advice.largest)} parameters")
    for note in found.notes:
        out.print(f"note      {shown(note, 200)}")
