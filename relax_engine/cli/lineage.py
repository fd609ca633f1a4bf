"""``relax lineage``: look into the artifact store. All work is ``relax_engine.lineage``'s; this only prints it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.tree import Tree

    from relax_engine.lineage import Artifact, ArtifactStore

Command = Callable[["ArtifactStore", argparse.Namespace], int]
_UNWRAPPED = 1000  # columns where no terminal gives a width
_REF = "name, name@vN, name@alias, kind/name, digest prefix, or a path whose content was published"


def main(argv: list[str]) -> int:
    """Run one lineage command. Returns 0, or 1 when it failed or found damage (the reason is on stderr)."""
    options = _parser().parse_args(argv)
    from relax_engine.lineage import ArtifactStore
    from relax_engine.lineage.errors import LineageError

    try:
        store = ArtifactStore.open(options.store, create=False)
        command: Command = options.command
        return command(store, options)
    except (LineageError, FileNotFoundError) as error:
        print(f"relax lineage: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--store", metavar="URL", help="artifact store (default: $RELAX_ARTIFACTS, else ./artifacts)")
    common.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser = argparse.ArgumentParser(prog="relax lineage", description="Artifacts and what they were made from.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(
        name: str, command: Callable[[ArtifactStore, argparse.Namespace], int], text: str
    ) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text, parents=[common])
        sub.set_defaults(command=command)
        return sub

    add("show", _show, "print an artifact and the chain down to its first ancestors").add_argument("ref", help=_REF)
    graph = add("graph", _graph, "draw an artifact, its ancestors and descendants as an HTML page, or as text")
    graph.add_argument("ref", help=_REF)
    graph.add_argument("--output", default="lineage.html", metavar="FILE", help="where to write it (%(default)s)")
    graph.add_argument("--text", action="store_true", help="print it instead")
    listing = add("list", _list, "list names with their newest version and aliases")
    listing.add_argument("--kind", help="only names of this kind")
    add("ancestors", _ancestors, "everything an artifact was made from").add_argument("ref", help=_REF)
    add("descendants", _descendants, "everything made from an artifact").add_argument("ref", help=_REF)
    add("verify", _verify, "re-hash the stored bytes of an artifact").add_argument("ref", help=_REF)
    tagging = add("tag", _tag, "point an alias of a name at one of its versions")
    tagging.add_argument("name")
    tagging.add_argument("alias")
    tagging.add_argument("ref", help=_REF)
    rolling = add("rollback", _rollback, "point an alias back at the version it pointed at before")
    rolling.add_argument("name")
    rolling.add_argument("alias", nargs="?", default="production", help="(default: %(default)s)")
    differing = add("diff", _diff, "what differs between two artifacts and what they were made from")
    differing.add_argument("left", help=_REF)
    differing.add_argument("right", help=_REF)
    add(
        "log", _log, "the versions of a name, newest first, with their figures, and the moves of its aliases"
    ).add_argument("name")
    add("events", _events, "publications as OpenLineage events, one JSON line each").add_argument(
        "name", nargs="?", help="of one name only"
    )
    registering = add("register", _register, "make a model a version in MLflow's model registry ($MLFLOW_TRACKING_URI)")
    registering.add_argument("ref", help=_REF)
    collecting = add("gc", _gc, "remove what unfinished publications left; versions are never touched")
    collecting.add_argument(
        "--grace-hours",
        type=float,
        default=24.0,
        metavar="HOURS",
        help="leave alone what is younger, since a publication may still need it (default: %(default)g)",
    )
    collecting.add_argument("--dry-run", action="store_true", help="list what would go, and remove nothing")
    add("which", _which, "name the artifacts that hold a file, by content, and what they were made from").add_argument(
        "file", help="file or directory"
    )
    return parser


def _show(store: ArtifactStore, options: argparse.Namespace) -> int:
    artifact = store.resolve(options.ref)
    if options.json:
        chain = [ancestor.to_json() for ancestor in store.ancestors(artifact)]
        _write_json({**artifact.to_json(), "ancestors": chain})
        return 0
    _print_chain(store, artifact)
    return 0


def _print_chain(store: ArtifactStore, artifact: Artifact) -> None:
    from rich.tree import Tree

    tree = Tree(_describe(artifact), guide_style="dim")
    _grow(store, artifact, tree, {artifact.ref})
    _console().print(tree)


def _grow(store: ArtifactStore, artifact: Artifact, tree: Tree, shown: set[str]) -> None:
    for parent in store.parents(artifact):
        if parent.ref in shown:
            tree.add(f"[dim]{parent.kind}[/] [bold]{parent.ref}[/] [dim](above)[/]")
            continue
        shown.add(parent.ref)
        _grow(store, parent, tree.add(_describe(parent)), shown)


def _graph(store: ArtifactStore, options: argparse.Namespace) -> int:
    from relax_engine.lineage.graph import render_html

    artifact = store.resolve(options.ref)
    family = [*store.ancestors(artifact), *store.descendants(artifact)]
    if options.json:
        _write_json([member.to_json() for member in (artifact, *family)])
        return 0
    if options.text:
        _print_family(artifact, family)
        return 0
    with open(options.output, "w", encoding="utf-8") as file:
        file.write(render_html(artifact, family))
    print(f"{artifact.ref} and {len(family)} relatives drawn in {options.output}")
    return 0


def _print_family(subject: Artifact, family: list[Artifact]) -> None:
    """What has no parent in the family stands outermost; below each what was made from it, drawn out once."""
    from rich.tree import Tree

    members = {member.ref: member for member in sorted((subject, *family), key=lambda a: (a.created_at, a.ref))}
    children: dict[str, list[str]] = {}
    for ref, member in members.items():
        for link in member.parents:
            children.setdefault(link.ref, []).append(ref)
    shown: set[str] = set()

    def grow(tree: Tree, ref: str) -> None:
        mark = " [green]<-[/]" if ref == subject.ref else ""
        if ref in shown:
            tree.add(f"[dim]{members[ref].kind}[/] [bold]{ref}[/] [dim](above)[/]{mark}")
            return
        shown.add(ref)
        branch = tree.add(_describe(members[ref]) + mark)
        for child in children.get(ref, ()):
            grow(branch, child)

    whole = Tree("", guide_style="dim", hide_root=True)
    for ref, member in members.items():
        if not any(link.ref in members for link in member.parents):
            grow(whole, ref)
    _console().print(whole)


def _describe(artifact: Artifact) -> str:
    commit = artifact.producer.get("git_commit")
    code = f"{commit[:10]}{'+dirty' if artifact.producer.get('git_dirty') else ''}" if commit else "code unknown"
    metrics = "".join(f"  {key}={value:.4g}" for key, value in sorted(artifact.metrics.items()))
    return (
        f"[cyan]{artifact.kind}[/] [bold]{artifact.ref}[/]  {artifact.short_digest}  "
        f"[dim]{artifact.created_at[:19]}Z  {code}[/]{metrics}"
    )


def _list(store: ArtifactStore, options: argparse.Namespace) -> int:
    rows = [{**newest.to_json(), "aliases": aliases} for newest, aliases in store.newest(options.kind)]
    if options.json:
        _write_json(rows)
        return 0
    from rich.table import Table

    table = Table("kind", "newest", "digest", "created", "files", "bytes", "aliases", box=None, pad_edge=False)
    for row in rows:
        aliases = " ".join(f"{alias}=v{number}" for alias, number in row["aliases"].items() if alias != "latest")
        size = sum(entry["size"] for entry in row["files"])
        cells = (row["kind"], row["ref"], row["digest"][:12], row["created_at"][:19], len(row["files"]), size, aliases)
        table.add_row(*map(str, cells))
    _console().print(table)
    return 0


def _ancestors(store: ArtifactStore, options: argparse.Namespace) -> int:
    return _write_artifacts(store.ancestors(options.ref), as_json=options.json)


def _descendants(store: ArtifactStore, options: argparse.Namespace) -> int:
    return _write_artifacts(store.descendants(options.ref), as_json=options.json)


def _verify(store: ArtifactStore, options: argparse.Namespace) -> int:
    artifact = store.resolve(options.ref)
    problems = store.verify(artifact)
    if options.json:
        _write_json({"ref": artifact.ref, "digest": artifact.digest, "problems": problems})
    else:
        for problem in problems:
            print(f"{artifact.ref}: {problem}")
        if not problems:
            print(f"{artifact.ref}: {len(artifact.files)} files, {artifact.size} bytes, all as published")
    return 1 if problems else 0


def _tag(store: ArtifactStore, options: argparse.Namespace) -> int:
    return _write_alias(store.tag(options.name, options.alias, options.ref), options)


def _rollback(store: ArtifactStore, options: argparse.Namespace) -> int:
    return _write_alias(store.rollback(options.name, options.alias), options)


def _write_alias(artifact: Artifact, options: argparse.Namespace) -> int:
    if options.json:
        _write_json(artifact.to_json())
    else:
        print(f"{options.name}@{options.alias} -> {artifact.ref} ({artifact.short_digest})")
    return 0


def _which(store: ArtifactStore, options: argparse.Namespace) -> int:
    found = store.holders(options.file)
    if options.json:
        _write_json([{**a.to_json(), "ancestors": [b.to_json() for b in store.ancestors(a)]} for a in found])
    else:
        for artifact in found:
            _print_chain(store, artifact)
    if not found:
        print(f"relax lineage: no artifact holds the content of {options.file}", file=sys.stderr)
    return 0 if found else 1


def _diff(store: ArtifactStore, options: argparse.Namespace) -> int:
    diff = store.diff(options.left, options.right)
    if options.json:
        from dataclasses import asdict

        _write_json(asdict(diff))
        return 0
    from rich.table import Table

    table = Table("", "", diff.left, diff.right, box=None, pad_edge=False)
    for section in ("ancestors", "producer", "metadata", "metrics", "files"):
        for key, (left, right) in getattr(diff, section).items():
            table.add_row(f"[dim]{section}[/]", key, _cell(section, left), _cell(section, right))
    _console().print(table if table.row_count else f"{diff.left} and {diff.right} are the same in all but their names")
    return 0


def _cell(section: str, value: object) -> str:
    if value is None:
        return "[dim]-[/]"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)[:12] if section == "files" else str(value)


def _log(store: ArtifactStore, options: argparse.Namespace) -> int:
    versions = list(reversed(store.versions(options.name)))
    aliases: dict[int, list[str]] = {}
    for alias, number in store.aliases(options.name).items():
        aliases.setdefault(number, []).append(alias)
    if options.json:
        _write_json([{**version.to_json(), "aliases": aliases.get(version.version, [])} for version in versions])
        return 0
    console = _console()
    for version in versions:
        names = "".join(f"  [green]{alias}[/]" for alias in aliases.get(version.version, ()))
        console.print(_describe(version) + names)
    for move in store.moves(options.name):
        console.print(f"[dim]{move.at[:19]}  {move.alias} -> v{move.version}{'  (back)' if move.back else ''}[/]")
    return 0


def _events(store: ArtifactStore, options: argparse.Namespace) -> int:
    from relax_engine.lineage.events import publication_event

    for name in [options.name] if options.name else store.names():
        for version in store.versions(name):
            print(json.dumps(publication_event(version, store.url)))
    return 0


def _register(store: ArtifactStore, options: argparse.Namespace) -> int:
    from relax_engine.observe.trackers.mlflow_registry import register

    artifact = store.resolve(options.ref)
    number = register(store, artifact)
    if options.json:
        _write_json({"name": artifact.name, "version": number, "ref": artifact.ref})
    else:
        print(f"{artifact.ref} is version {number} of {artifact.name} in MLflow")
    return 0


def _gc(store: ArtifactStore, options: argparse.Namespace) -> int:
    result = store.collect_garbage(grace_s=options.grace_hours * 3600, dry_run=options.dry_run)
    if options.json:
        _write_json({"removed": result.removed, "kept": result.kept, "dry_run": options.dry_run})
        return 0
    for key in result.removed:
        print(key)
    verb = "would be removed" if options.dry_run else "removed"
    print(f"{len(result.removed)} objects {verb}, {result.kept} older than {options.grace_hours:g} h kept")
    return 0


def _write_artifacts(artifacts: list[Artifact], *, as_json: bool) -> int:
    if as_json:
        _write_json([artifact.to_json() for artifact in artifacts])
        return 0
    console = _console()
    for artifact in artifacts:
        console.print(_describe(artifact))
    return 0


def _console() -> Console:
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=_UNWRAPPED)


def _write_json(value: object) -> None:
    json.dump(value, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")
