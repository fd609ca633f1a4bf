"""A ledger that was rebuilt from its journal behaves as the one that was lost."""

import pickle
import random

import pytest

from relax_engine.rollout.admission import AdmissionGate
from relax_engine.stream import journal as journal_module
from relax_engine.stream.delivery import PutItem, RowGroups, Stored
from relax_engine.stream.errors import StreamError
from relax_engine.stream.journal import Journal
from relax_engine.stream.ledger import StreamLedger


def fresh():
    return StreamLedger(row_budget=10**6, byte_budget=10**9, gate=AdmissionGate(max_staleness=1, groups_per_step=4))


class Recorded:
    """A ledger and its journal, as the controller uses them."""

    def __init__(self, directory):
        self.journal = Journal(directory)
        self.ledger = self.journal.load(fresh)

    def killed(self):
        """The one that is started after this one's process was killed."""
        self.journal._file.close()
        return Recorded(self.journal.directory)

    def do(self, operation, *args, **options):
        try:
            result = getattr(self.ledger, operation)(*args, **options)
        except (StreamError, ValueError):
            return None
        self.journal.append(self.ledger, operation, args, options)
        return result


def put(recorded, partition, token, groups):
    rows = 2 * len(groups)
    item = PutItem(rows, 8 * rows, ("a",), RowGroups(tuple(groups), (2,) * len(groups)), token, None, 1.0)
    return recorded.do("put", partition, Stored(token, 0, None).block(0, rows, 8 * rows), item, now=0.0)


def random_operation(rng, recorded, step):
    name = f"train_{rng.randrange(step // 60 + 2)}"
    match rng.randrange(9):
        case 0 | 1:
            put(recorded, name, f"{name}:{rng.randrange(30)}", range(4 * step, 4 * step + rng.randrange(1, 3)))
        case 2:
            recorded.do("admit", rng.randrange(1, 4), f"token {rng.randrange(20)}", 0.0)
        case 3:
            recorded.do("select", name, "reader", rng.randrange(4), ("a",), 4, None, True, 0.0)
        case 4:
            recorded.do("commit", name, "reader", rng.randrange(4))
        case 5:
            recorded.do("record", "filtered", 2, [rng.randrange(step + 1)], f"token {rng.randrange(50)}")
        case 6 if rng.random() < 0.3:
            recorded.do("seal", name, {"position": step}, 0.0)
        case 7 if rng.random() < 0.3:
            recorded.do("finish", name, None, 0, retain=rng.random() < 0.5)
        case 8 if rng.random() < 0.2:
            recorded.do("withdraw")


def state(ledger):
    """Everything, as bytes; clocks and empty tables of refused operations aside."""
    tables = {name: table for name, table in ledger.partitions.items() if table.rows or table.sealed}
    answers = {name: table.progress(0.0) for name, table in tables.items()}
    return (
        ledger.stats(),
        sorted(ledger.retained),
        ledger.admission.state(),
        ledger.withdraw(),
        {name: {task: (p.delivered, p.last_seq, p.committed_seq) for task, p in tasks.items() if p.last_seq >= 0}
         for name, tasks in answers.items()},
    )  # fmt: skip


@pytest.mark.parametrize("limit", [1 << 20, 2000])
def test_a_ledger_killed_after_any_operation_is_rebuilt(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(journal_module, "_COMPACT_BYTES", limit)
    for seed in range(6):
        directory = tmp_path / str(seed)
        rng = random.Random(seed)
        recorded = Recorded(directory)
        for step in range(240):
            random_operation(rng, recorded, step)
            if rng.random() < 0.05:
                before = pickle.loads(pickle.dumps(recorded.ledger))
                recorded = recorded.killed()
                assert state(pickle.loads(pickle.dumps(recorded.ledger))) == state(before)
        recorded.killed().journal._file.close()
        assert recorded.ledger.produced > 50
        files = sorted(path.name for path in directory.iterdir())
        assert len([name for name in files if name.endswith(".operations")]) == 1
        assert ("ledger.snapshot" in files) == (limit == 2000)


def test_an_operation_cut_off_by_a_crash_is_left_out(tmp_path):
    recorded = Recorded(tmp_path)
    put(recorded, "train_0", "first", [0])
    put(recorded, "train_0", "second", [1])
    path = tmp_path / "ledger.0.operations"
    path.write_bytes(path.read_bytes()[:-3])
    recorded = recorded.killed()
    assert recorded.ledger.produced == 2
    assert put(recorded, "train_0", "second", [1]) == range(2, 4)
    recorded = recorded.killed()
    assert recorded.ledger.produced == 4
    recorded.killed().journal._file.close()


def test_an_admission_whose_answer_was_lost_is_not_granted_twice(tmp_path):
    recorded = Recorded(tmp_path)
    assert recorded.do("admit", 3, "a", 0.0) == [0, 1, 2]
    recorded = recorded.killed()
    assert recorded.do("admit", 3, "a", 1.0) == [0, 1, 2]
    assert recorded.ledger.admission.occupied == 3
    assert recorded.do("admit", 3, "b", 1.0) == [3, 4, 5]
    recorded.journal._file.close()
