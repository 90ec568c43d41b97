"""Tasks that belong to one owner and end with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Tasks:
    """A set of running tasks; the event loop itself holds them too weakly to be relied on."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._names: set[str] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something beside the rest until it ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def start_once(self, name: str, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Run something unless what was started under this name still runs."""
        if name not in self._names:
            self._names.add(name)
            self.start(work()).add_done_callback(lambda _: self._names.discard(name))

    async def close(self) -> None:
        """Cancel all of them, and wait until they have ended."""
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
