"""Nothing that waits or touches disks runs on an event loop: while a role saves or trains, it goes on answering."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import relax_engine
from relax_engine.checkpoint.manager import CheckpointManager
from relax_engine.components.train_group import TrainGroup
from relax_engine.stream.client import StreamClient

PACKAGE = Path(relax_engine.__file__).parent
BLOCKING = {"stream": StreamClient, "group": TrainGroup, "checkpoints": CheckpointManager}
"""Objects by the name that the code gives them everywhere; their plain methods wait for others or for disks."""


def calls_on_the_loop(coroutine: ast.AST) -> Iterator[ast.Call]:
    """Calls that the coroutine makes itself; what it defines for a thread or a callback is not among them."""
    for child in ast.iter_child_nodes(coroutine):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.Call):
            yield child
        yield from calls_on_the_loop(child)


def blocking(source: str) -> list[str]:
    """Calls in coroutines of `source` that would stop the loop."""
    found = []
    for coroutine in ast.walk(ast.parse(source)):
        if isinstance(coroutine, ast.AsyncFunctionDef):
            for call in calls_on_the_loop(coroutine):
                owner, _, method = ast.unparse(call.func).rpartition(".")
                plain = getattr(BLOCKING.get(owner.rpartition(".")[2]), method, None)
                if (owner == "ray" and method in ("get", "wait")) or (
                    inspect.isfunction(plain) and not inspect.iscoroutinefunction(plain)
                ):
                    found.append(f"line {call.lineno}: {owner}.{method}()")
    return found


@pytest.mark.parametrize(
    ("statement", "stops"),
    [
        ("self.group.save(directory, {})", True),
        ("with self.checkpoints.writing(3) as directory: pass", True),
        ("rows = ray.get(reference)", True),
        ("self.stream.seal(partition)", True),
        ("await self.stream.aput(partition, batch)", False),
        ("await asyncio.to_thread(self.group.save, directory, {})", False),
        ("await asyncio.to_thread(lambda: self.group.save(directory, {}))", False),
    ],
)
def test_what_stops_a_loop_is_recognised(statement: str, stops: bool) -> None:
    assert bool(blocking(f"async def step(self):\n    {statement}\n")) is stops


def test_no_coroutine_stops_its_loop() -> None:
    """A save on the loop froze generation for as long as it took (SkyRL#188)."""
    found = {
        str(path.relative_to(PACKAGE)): calls
        for path in sorted(PACKAGE.rglob("*.py"))
        if (calls := blocking(path.read_text()))
    }
    assert found == {}
