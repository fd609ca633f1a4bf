import hashlib

import pytest

from relax_engine.lineage.errors import InvalidNameError, StoreSchemaError
from relax_engine.lineage.manifest import FileEntry, artifact_digest, check_alias, check_name, parse_manifest

A = FileEntry("a.txt", "aa" * 32, 3)
B = FileEntry("sub/b.txt", "bb" * 32, 4)


def test_digest_is_sha256_of_the_documented_canonical_core():
    core = '{"files":[{"path":"a.txt","sha256":"%s","size":3}],"kind":"model","layout":"directory"}' % ("aa" * 32)
    assert artifact_digest("model", "directory", [A]) == hashlib.sha256(core.encode()).hexdigest()


def test_digest_ignores_file_order_and_sees_kind_layout_path_and_content():
    digest = artifact_digest("model", "directory", [A, B])
    assert artifact_digest("model", "directory", [B, A]) == digest
    others = {
        artifact_digest("dataset", "directory", [A, B]),
        artifact_digest("model", "directory", [A]),
        artifact_digest("model", "file", [A]),
        artifact_digest("model", "directory", [A, FileEntry("b.txt", B.sha256, B.size)]),
        artifact_digest("model", "directory", [A, FileEntry(B.path, A.sha256, B.size)]),
    }
    assert len(others) == 5
    assert digest not in others


@pytest.mark.parametrize("name", ["", "-x", "a/b", "a@b", "..", "x" * 129, "a b"])
def test_names_that_could_be_taken_for_something_else_are_refused(name):
    with pytest.raises(InvalidNameError, match="not allowed"):
        check_name(name)


@pytest.mark.parametrize("alias", ["latest", "v1", "v20", "a/b", ""])
def test_aliases_the_store_gives_itself_are_refused(alias):
    with pytest.raises(InvalidNameError, match="not allowed"):
        check_alias(alias)


def test_manifest_of_a_newer_release_is_refused_by_its_schema_number():
    with pytest.raises(StoreSchemaError, match="schema 7; this release reads schema 1"):
        parse_manifest(b'{"schema": 7}', version=1, record="r")
