"""A stream whose next item is made by a thread while the present one is used."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items in the same order; an error comes where the item would have come.

    One item more than without is in memory. Worth it where making and using them release the interpreter's lock, as
    Arrow does.
    """
    end: Any = object()
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as executor:
        coming = executor.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = executor.submit(next, items, end)
            yield item
