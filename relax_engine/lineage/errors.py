"""Errors of the artifact store. Each message names the thing, the value and the way out."""


class LineageError(RuntimeError):
    """Base of every error the artifact store raises on purpose."""


class StoreUrlError(LineageError):
    """The root URL cannot hold an artifact store."""


class StoreSchemaError(LineageError):
    """The store or a document in it was written in a layout this version does not know."""


class InvalidNameError(LineageError, ValueError):
    """An artifact name, alias, kind or path that the store does not accept."""


class ArtifactNotFoundError(LineageError, LookupError):
    """No artifact answers to the reference."""


class AmbiguousReferenceError(LineageError, LookupError):
    """A digest prefix that more than one artifact starts with."""


class AliasConflictError(LineageError):
    """The alias moved between the caller's read and its update."""


class SourceChangedError(LineageError):
    """A file changed while it was being published."""


class CorruptArtifactError(LineageError):
    """Stored bytes do not hash to what the manifest says."""


class StoreTimeoutError(LineageError, TimeoutError):
    """A lock or a compare-and-swap did not succeed before its deadline."""
