"""Notifications about a run over Apprise: start, regular reports, end, alerts and errors.

What lives here: what is told, to whom, how often. Messages leave from a thread of its own with a bounded queue, so that
a service that is slow, wrong or away neither delays nor fails a training step. What does not: how messages reach a
service (Apprise).
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from relax_engine.errors import ConfigError
from relax_engine.observe.regressions import WINDOW, Watched, regressions
from relax_engine.utils.redact import redact

logger = logging.getLogger(__name__)

Level = Literal["info", "success", "warning", "failure"]

REPORTED = (
    "rollout/raw_reward",
    "rollout/response_len/mean",
    "rollout/truncated_ratio",
    "train/loss",
    "train/pg_loss",
    "train/kl_loss",
    "train/entropy_loss",
    "train/value_loss",
    "train/grad_norm",
    "train/lr",
    "perf/step_time",
)
"""Metrics in reports, in this order; those that a run does not have are left out."""

_QUEUED = 64
_CLOSE_S = 15.0
_LONGEST_TEXT = 4000


@dataclass(frozen=True, slots=True)
class Message:
    """One notification. `report` numbers the metric reports from 0; other messages go to everyone."""

    title: str
    body: str
    level: Level = "info"
    report: int | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """One Apprise URL, without its `freq`: it gets the first of every `freq` metric reports."""

    service: Any
    freq: int
    shown: str


def parse_target(url: str) -> Target:
    """What an Apprise URL means.

    Raises:
        ConfigError: Apprise does not know it, or `freq` is no positive number. The message does not show the URL.
    """
    import apprise

    logging.getLogger("apprise").setLevel(logging.CRITICAL)  # it would log what it could not send, and where to
    shown = redact(url)
    parts = urlsplit(url)
    parameters = parse_qsl(parts.query, keep_blank_values=True)
    given = [value for name, value in parameters if name == "freq"]
    freq = given[-1] if given else "1"
    if not freq.isdigit() or int(freq) < 1:
        raise ConfigError(f"--notify-urls {shown}: freq must be a number from 1, got {freq!r}")
    rest = urlencode([(name, value) for name, value in parameters if name != "freq"], safe=",@/:")
    service = apprise.Apprise.instantiate(urlunsplit(parts._replace(query=rest)), suppress_exceptions=True)
    if service is None:
        raise ConfigError(
            f"--notify-urls {shown}: Apprise knows no such service, or the URL lacks a part of it; "
            "see https://appriseit.com/services/"
        )
    return Target(service, int(freq), shown)


class Notifier:
    """Sends messages to all targets from one thread, in order; the oldest are dropped when services are too slow."""

    def __init__(self, urls: Sequence[str], run: str, watch: Sequence[str] = ()) -> None:
        """`run` says in every title which run it is; `watch` are metrics of which it is told when they get worse."""
        self._targets = [parse_target(url) for url in urls]
        self._run = run
        self._queue: queue.Queue[Message | None] = queue.Queue(_QUEUED)
        self._reports = 0
        self._previous: dict[str, float] = {}
        self._watched = [Watched(name) for name in watch]
        self._failing: set[str] = set()
        self.dropped = 0
        self._thread = threading.Thread(target=self._send_all, name="notifications", daemon=True)
        if self._targets:
            self._thread.start()

    # -- what is told --------------------------------------------------------------------------------

    def started(self, facts: Mapping[str, Any]) -> None:
        """The run begins."""
        self._put(Message("started", "\n".join(f"{name}: {value}" for name, value in facts.items())))

    def report(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics of a step, each with its change since the report before."""
        lines = self._lines(metrics)
        self._put(Message(f"step {step}", "\n".join(lines), report=self._reports))
        self._reports += 1
        self._previous = {key: float(metrics[key]) for key in REPORTED if key in metrics}

    def finished(self, metrics: Mapping[str, float], facts: Mapping[str, Any]) -> None:
        """The run has come to its end."""
        lines = [f"{name}: {value}" for name, value in facts.items()]
        lines += [f"{key}: {float(metrics[key]):.6g}" for key in REPORTED if key in metrics]
        self._put(Message("finished", "\n".join(lines), "success"))

    def aborted(self, reason: str) -> None:
        """The run ends without having come to its end and without an error of its own."""
        self._put(Message("ended before its end", reason, "failure"))

    def failed(self, error: BaseException) -> None:
        """The run ends with an error."""
        text = "".join(traceback.format_exception(error))
        self._put(Message(f"failed: {type(error).__name__}", text[-_LONGEST_TEXT:], "failure"))

    def alert(self, title: str, body: str, level: Level = "warning") -> None:
        """Something that a person may want to look at."""
        self._put(Message(title, body, level))

    def event(self, event: Mapping[str, Any]) -> None:
        """Tell what a role reported, where that is worth a message."""
        match event["kind"]:
            case "step":
                self.report(event["step"], event["metrics"])
                for worse in regressions(self._watched, event["step"], event["metrics"]):
                    self.alert(
                        f"{worse.name} has become worse",
                        f"mean of {WINDOW} steps up to step {worse.step}: {worse.now:.6g}, at best {worse.best:.6g}",
                    )
            case "engine_quarantined":
                self.alert("engine out of service", f"{event['engine']}: {event['reason']}")
            case "engine_started" if event["replaces"] is not None:
                self.alert("engine started again", f"{event['engine']} in the place of {event['replaces']}", "info")
            case "role_restarted":
                self.alert(f"role {event['role']} started again", event["reason"][-_LONGEST_TEXT:])
            case "run_restarted":
                self.alert(f"run started again at step {event['step']}", event["reason"][-_LONGEST_TEXT:])

    def _lines(self, metrics: Mapping[str, float]) -> list[str]:
        lines = []
        for key in REPORTED:
            if key in metrics:
                before = self._previous.get(key)
                change = "" if before is None else f" ({float(metrics[key]) - before:+.4g})"
                lines.append(f"{key}: {float(metrics[key]):.6g}{change}")
        return lines

    # -- how it leaves -------------------------------------------------------------------------------

    def _put(self, message: Message | None) -> None:
        """Queue a message, or the end, without waiting: in the place of the oldest where all places are taken."""
        if not self._targets:
            return
        while True:
            try:
                self._queue.put_nowait(message)
                return
            except queue.Full:
                with contextlib.suppress(queue.Empty):
                    self._queue.get_nowait()
                    self.dropped += 1

    def _send_all(self) -> None:
        while (message := self._queue.get()) is not None:
            for target in self._targets:
                if message.report is None or message.report % target.freq == 0:
                    self._send(target, message)

    def _send(self, target: Target, message: Message) -> None:
        try:
            sent = target.service.notify(
                body=redact(message.body) or "-",
                title=f"{self._run}: {redact(message.title)}",
                notify_type=message.level,
            )
            problem = None if sent else "the service did not take the message"
        except Exception as error:  # noqa: BLE001 - of a hundred services' plugins; none may end the thread
            problem = f"{type(error).__name__}: {error}"
        if problem is None:
            self._failing.discard(target.shown)
        elif target.shown not in self._failing:
            self._failing.add(target.shown)
            logger.warning("notification to %s failed: %s; further failures are not logged", target.shown, problem)

    def close(self, deadline_s: float = _CLOSE_S) -> None:
        """Send what is queued, for at most `deadline_s` seconds."""
        if not self._thread.is_alive():
            return
        self._put(None)
        self._thread.join(deadline_s)
        if self._thread.is_alive() or self.dropped:
            left = self._queue.qsize() + self.dropped
            logger.warning("%d notification(s) were not sent: the services are too slow", left)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def notified(urls: Sequence[str], run: str, facts: Mapping[str, Any], watch: Sequence[str] = ()) -> Iterator[Notifier]:
    """A notifier that tells of the block's start and of an exception that leaves it; telling of its end is the block's.

    Raises:
        ConfigError: a URL that Apprise does not know, or a metric to watch that has no better direction.
    """
    with Notifier(urls, run, watch) as notifier:
        notifier.started(facts)
        try:
            yield notifier
        except Exception as error:
            notifier.failed(error)
            raise
        except BaseException as error:
            notifier.aborted(f"{type(error).__name__} {error}".strip())
            raise
