"""The few routes of the Hugging Face hub that reading a dataset's files takes, over a folder.

Routes and fields are those that `huggingface_hub` asks for: repository, tree, paths-info, and files by byte ranges.
"""

from __future__ import annotations

import hashlib
import json
import re
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

REPOSITORY = "team/questions"
_COMMIT = "0123456789abcdef0123456789abcdef01234567"


class _Hub(BaseHTTPRequestHandler):
    def __init__(self, root: Path, *args: Any) -> None:
        self.root = root
        super().__init__(*args)

    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        path = urllib.parse.unquote(url.path)
        api, files = f"/api/datasets/{REPOSITORY}", f"/datasets/{REPOSITORY}/resolve/"
        if path in (api, f"{api}/revision/main", f"{api}/revision/{_COMMIT}"):
            self._json({"id": REPOSITORY, "sha": _COMMIT, "siblings": []})
        elif path.startswith(f"{api}/tree/"):
            folder = self.root / path.removeprefix(f"{api}/tree/").partition("/")[2]
            recursive = "True" in urllib.parse.parse_qs(url.query).get("recursive", [])
            found = sorted(folder.rglob("*") if recursive else folder.iterdir()) if folder.is_dir() else None
            self._json([self._entry(each) for each in found] if found is not None else None)
        elif path.startswith(files):
            self._file(self.root / path.removeprefix(files).partition("/")[2])
        else:
            self._json(None)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        names = urllib.parse.parse_qs(body).get("paths") or json.loads(body)["paths"]
        found = [self.root / name for name in names]
        self._json([self._entry(path) for path in found if path.exists()])

    def _entry(self, path: Path) -> dict[str, Any]:
        name = str(path.relative_to(self.root))
        if path.is_dir():
            return {"type": "directory", "oid": _COMMIT, "path": name, "size": 0}
        return {"type": "file", "oid": _COMMIT, "path": name, "size": path.stat().st_size}

    def _json(self, value: Any) -> None:
        self._answer(404 if value is None else 200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _file(self, path: Path) -> None:
        if not path.is_file():
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        content = path.read_bytes()
        headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": _COMMIT}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted is None:
            self._answer(200, content, headers)
            return
        start, stop = int(wanted[1]), min(int(wanted[2] or len(content)) + 1, len(content))
        self._answer(206, content[start:stop], headers | {"Content-Range": f"bytes {start}-{stop - 1}/{len(content)}"})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def serve_hub(root: Path) -> Iterator[str]:
    """Address of a hub whose dataset `REPOSITORY` consists of the files under `root`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Hub, root))
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()
